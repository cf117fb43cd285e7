use std::collections::BTreeMap;

use serde::Deserialize;

use super::json::Writer;
use super::*;
use crate::json::Object;

#[test]
fn floats_read_like_pythons() {
    for (value, expected) in [
        (2.0, "2.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1.5e22, "1.5e+22"),
        (1e-4, "0.0001"),
        (1e-5, "1e-05"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740993.0, "9007199254740992.0"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(repr_float(value), expected);
    }
}

#[test]
fn strings_read_like_pythons() {
    for (string, expected) in [
        ("two", "'two'"),
        ("it's", "\"it's\""),
        ("'\"", "'\\'\"'"),
        ("a\\\n\r\t", "'a\\\\\\n\\r\\t'"),
        ("\u{0}\u{7f}\u{a0}\u{ad}", "'\\x00\\x7f\\xa0\\xad'"),
        (
            "\u{2028}\u{3000}\u{e000}\u{10ffff}",
            "'\\u2028\\u3000\\ue000\\U0010ffff'",
        ),
        ("é日🙂\u{301}", "'é日🙂\u{301}'"),
    ] {
        assert_eq!(repr_str(string), expected);
    }
    assert_eq!(repr_list(["a", "it's"]), r#"['a', "it's"]"#);
}

fn text(json: &str) -> String {
    Value::parse(json).unwrap().text()
}

#[test]
fn values_print_like_pythons() {
    for (json, expected) in [
        ("3", "3"),
        ("-0", "0"),
        ("-0.0", "-0.0"),
        ("2.0", "2.0"),
        ("1e16", "1e+16"),
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "1.8446744073709552e+19"),
        ("true", "True"),
        ("null", "None"),
        (r#""it's""#, "it's"),
        (r#"[1,"two",null,1.5]"#, "[1, 'two', None, 1.5]"),
        (r#"{"k":"it's","t":[],"k":{}}"#, "{'k': {}, 't': []}"),
        (r#"[ "a\nb" , "it's" ]"#, r#"['a\nb', "it's"]"#),
    ] {
        assert_eq!(text(json), expected);
    }
    assert_eq!(
        Value::parse("\"é日🙂\\n\"").unwrap().ascii(),
        r"'\xe9\u65e5\U0001f642\n'"
    );
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(text(&nested(MAX_DEPTH)), nested(MAX_DEPTH));
    assert_eq!(Value::parse(&nested(MAX_DEPTH + 1)), None);
}

/// What CPython makes of a value; `tests/data/python_values.py` explains the fields.
#[derive(Deserialize)]
struct Case {
    json: String,
    truth: bool,
    float: Option<String>,
    dumps: String,
    str: Option<String>,
    repr: Option<String>,
    ascii: Option<String>,
    #[serde(default)]
    formats: BTreeMap<String, Option<String>>,
}

fn cases() -> Vec<Case> {
    let lines = include_str!("../../tests/data/python_values.jsonl").lines();
    let cases = lines.map(|line| serde_json::from_str(line).unwrap());
    cases.collect()
}

#[test]
fn values_are_true_and_floats_as_cpython_has_it() {
    for Case {
        json,
        truth,
        float: expected,
        ..
    } in cases()
    {
        assert_eq!(is_truthy(&json), truth, "{json}");
        if let Ok(value) = serde_json::from_str(&json) {
            assert_eq!(is_truthy_value(&value), truth, "{json}");
        }
        let is_json = !matches!(&*json, "NaN" | "Infinity" | "-Infinity");
        if is_json {
            assert_eq!(float(&json).map(repr_float), expected, "{json}");
        }
    }
}

#[test]
fn values_are_printed_and_written_as_cpython_has_it() {
    for case in cases() {
        let json = &case.json;
        let mut dumped = String::new();
        let loaded = json::loads(json, Writer::Dumps).unwrap();
        loaded.write(Writer::Dumps, &mut dumped);
        assert_eq!(dumped, case.dumps);
        if case.str.is_some() {
            let value = Value::parse(json).unwrap();
            let printed = [value.text(), value.repr(), value.ascii()];
            let expected = [case.str, case.repr, case.ascii];
            assert_eq!(printed.map(Some), expected, "{json}");
        }
    }
}

#[test]
fn values_are_formatted_as_cpython_has_it() {
    for case in cases() {
        let json = &case.json;
        let task = format!("{{\"x\":{json}}}");
        for (spec, expected) in case.formats {
            let task = Object::parse(&task).unwrap();
            let template = Template::parse(&format!("{{x:{spec}}}")).unwrap();
            assert_eq!(template.fill(&task).ok(), expected, "{json} {spec}");
        }
    }
}

#[test]
fn values_that_python_finds_equal_are_one_key() {
    let key = |json: &str| Value::parse(json)?.into_key();
    for (one, other) in [
        ("1", "1.0"),
        ("1", "true"),
        ("0", "-0.0"),
        ("false", "1e-999"),
        ("18446744073709551616", "18446744073709551616.0"),
        ("1.5", "15e-1"),
        ("\"1\"", r#""\u0031""#),
    ] {
        assert_eq!(key(one), key(other), "{one} {other}");
    }
    for (one, other) in [
        ("1", "\"1\""),
        ("null", "0"),
        ("9007199254740993", "9007199254740992.0"),
    ] {
        assert_ne!(key(one), key(other), "{one} {other}");
    }
    assert_eq!(key("[1]"), None);
}
