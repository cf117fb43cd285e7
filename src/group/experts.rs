//! The experts that a mixture-of-experts model routed tokens to, in the two forms that NeMo RL reads.

use data_encoding::BASE64;
use serde_json::Value;

use crate::model::Message;

/// What a packed text begins with.
const MAGIC: &str = "nrlre1";

/// Reads the field `routed_experts`, which has for each token a list of layers, and for each layer a list of experts. It
/// is nested lists, or the text `nrlre1:INTEGERS:TOKENSxLAYERSxEXPERTS:BASE64` of little-endian `int8`, `int16` or `int32`.
///
/// # Errors
/// It is neither.
pub(super) fn by_token(field: Value) -> Result<Vec<Value>, String> {
    let experts = match field {
        Value::String(text) => unpacked(&text),
        Value::Array(tokens) => has_one_shape(&tokens).then_some(tokens),
        _ => None,
    };
    experts.ok_or_else(|| {
        format!("its routed_experts are neither lists of [token][layer][expert] nor '{MAGIC}:...'")
    })
}

/// Splits the experts of all tokens up to the end of a generation into those of the prompt's `new` tokens and those of the
/// generation, after `seen` and `new` tokens. The experts of the last token of the turn before are known only now: they
/// replace those that were a filler.
///
/// # Errors
/// There are fewer than tokens.
pub(super) fn split(
    mut experts: Vec<Value>,
    before: Option<&mut Message>,
    (seen, new, generated): (usize, usize, usize),
) -> Result<(Vec<Value>, Vec<Value>), String> {
    if experts.len() < seen + new + generated {
        return Err(format!(
            "it has routed_experts of {} tokens, and {} tokens",
            experts.len(),
            seen + new + generated
        ));
    }
    experts.truncate(seen + new + generated);
    let of_generation = experts.split_off(seen + new);
    let of_prompt = experts.split_off(seen);
    let filler = before.and_then(|before| before.routed_experts.as_mut()?.last_mut());
    if let (Some(filler), Some(known)) = (filler, experts.pop()) {
        *filler = known;
    }
    Ok((of_prompt, of_generation))
}

/// Returns whether all tokens have as many layers, and all layers as many experts.
fn has_one_shape(tokens: &[Value]) -> bool {
    let experts = |layer: &Value| {
        let experts = layer.as_array()?;
        experts
            .iter()
            .all(Value::is_number)
            .then_some(experts.len())
    };
    let shape =
        |token: &Value| -> Option<Vec<usize>> { token.as_array()?.iter().map(experts).collect() };
    let mut shapes = tokens.iter().map(shape);
    let Some(Some(first)) = shapes.next() else {
        return false;
    };
    let is_even = first
        .windows(2)
        .all(|pair| matches!(pair, [a, b] if a == b));
    let is_even = is_even && !first.is_empty();
    is_even && shapes.all(|shape| shape.as_ref() == Some(&first))
}

fn unpacked(text: &str) -> Option<Vec<Value>> {
    let mut parts = text.splitn(4, ':');
    if parts.next()? != MAGIC {
        return None;
    }
    let width = match parts.next()? {
        "int8" => 1,
        "int16" => 2,
        "int32" => 4,
        _ => return None,
    };
    let shape = parts.next()?.split('x').map(|size| size.parse().ok());
    let shape: Vec<usize> = shape.collect::<Option<_>>()?;
    let [tokens, layers, experts] = shape.try_into().ok()?;
    let bytes = BASE64.decode(parts.next()?.as_bytes()).ok()?;
    let of_token = layers.checked_mul(experts)?;
    if of_token == 0 || of_token.checked_mul(tokens)?.checked_mul(width)? != bytes.len() {
        return None;
    }
    let integers = bytes.chunks_exact(width).map(|bytes| signed(bytes).into());
    let integers: Vec<Value> = integers.collect();
    let list = |values: &[Value]| Value::from(values.to_vec());
    let by_layer: Vec<Value> = integers.chunks(experts).map(list).collect();
    Some(by_layer.chunks(layers).map(list).collect())
}

/// Returns the little-endian integer in up to four bytes.
fn signed(bytes: &[u8]) -> i32 {
    let bits = |bits: i32, byte: &u8| (bits << 8) | i32::from(*byte);
    let unused = 8 * (size_of::<i32>() - bytes.len());
    (bytes.iter().rev().fold(0, bits) << unused) >> unused
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_forms_are_read() {
        let listed = json!([[[0, 1], [2, -3]], [[4, 5], [6, 7]]]);
        let bytes = [0, 1, 2, 253, 4, 5, 6, 7];
        let wide = bytes.map(|byte| i32::from(byte as i8));
        let wide: Vec<u8> = wide.into_iter().flat_map(i32::to_le_bytes).collect();
        for packed in [
            format!("nrlre1:int8:2x2x2:{}", BASE64.encode(&bytes)),
            format!("nrlre1:int32:2x2x2:{}", BASE64.encode(&wide)),
        ] {
            let read = by_token(packed.into()).unwrap();
            assert_eq!(Value::from(read), listed);
        }
        assert_eq!(Value::from(by_token(listed.clone()).unwrap()), listed);
    }

    #[test]
    fn other_values_are_refused() {
        for field in [
            json!(1),
            json!([1]),
            json!([[1]]),
            json!([[["a"]]]),
            json!([]),
            json!([[]]),
            json!([[[1], [2, 3]]]),
            json!([[[1], [2]], [[3]]]),
            json!("nrlre1:int8:2x2x2:AAAA"),
            json!("nrlre1:int8:1x0x3:"),
            json!("nrlre1:float32:1x1x1:AAAAAA=="),
            json!("nrlre2:int8:1x1x1:AA=="),
        ] {
            assert!(by_token(field.clone()).is_err(), "{field}");
        }
    }
}
