"""Prints tests/data/python_values.jsonl: what CPython makes of JSON values. Run it with any CPython from 3.11 on.

`json` is the text of the value, `truth` is bool(), `float` is repr(float()) or null where that raises an exception,
`str`, `repr` and `ascii` are how it prints, `dumps` is how json.dumps writes it, `formats` is format() by spec. Whole
numbers beyond 64 bits become floats where they are printed, since the collector reads its rows with orjson.
"""

import json

TEXTS = r"""
null true false 0 -0 0.0 -0.0 0e5 0E-5 -0e5 1e-400 5e-324 1e400 -1e400 1 -1 7 -42 0.1 0.5 2.0 1.5 -2.5 1e15 1e16 1.5e22
123456.789 1234567 9007199254740993 9007199254740993.0 1e-4 1e-5 1e21 1e300 18446744073709551615 18446744073709551616
-9223372036854775808 -9223372036854775809 123456789012345678901234567890 NaN Infinity -Infinity 1.7976931348623157e308
"" "\u0020" "0" "false" "\u0000" "\u00a0" "two" "it's" "\"" "'\"" "a\\b\n\r\t" "\u0007\u007f\u00ad\u2028\u3000\ue000"
"\u00e9\u65e5\ud83d\ude42\u0301" "\udbff\udfff" "12" "1_0.5e1" "_1" "1_" "1__0" "\u20071.5\u001c" "inf" "-Infinity" "nan"
".5" "1." "1e" "0x1" "+3" "-\u00203" [] {} [0] [[]] [null] {"":0} {"a":null} [1,"two",null,1.5,true]
{"k":"it's","t":[],"k":{}} {"a":[{"b":{"c":[]}}],"d":-0.0}
""".split()
TEXTS += ["[ ]", "[\n\t]", "{ }", '[ "a" , 1 ]', '{ "a" : 1 , "b":[ ] }']
NUMBERS = ["", "d", "5d", "<7", "^9", "+", " ", "08.2f", ",", "_", ",.2f", "012,.1f", "x", "#X", "#o", "_b", "c", "n"]
NUMBERS += ["e", ".0e", "#.0e", "E", "g", ".3g", "#.3g", "G", ".0f", "#.0f", "%", ".1%", "z.0f", ".3", ".17g", "*>+12", "=+8"]
STRINGS = ["", "s", "6", "<6", ">6", "^7", "*^7", ".1", ".2s", "05", "=5", "+", "#", ",", "d"]


def float_of(value):
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def formatted(value, spec):
    try:
        return format(value, spec)
    except (TypeError, ValueError, OverflowError):
        return None


def main():
    for text in TEXTS:
        value = json.loads(text)
        case = {"json": text, "truth": bool(value), "float": float_of(value), "dumps": json.dumps(value)}
        if type(value) is int and not -(2**63) <= value < 2**64:
            value = float(value)
        if value == value and value not in (float("inf"), -float("inf")):
            case |= {"str": str(value), "repr": repr(value), "ascii": ascii(value)}
            specs = {str: STRINGS, int: NUMBERS, float: NUMBERS, bool: NUMBERS}.get(type(value), ["", ">5"])
            case["formats"] = {spec: formatted(value, spec) for spec in specs}
        print(json.dumps(case))


main()
