/// What an environment says when an episode goes on after its `turn`-th turn, from 1.
pub(super) fn go_on(turn: u64) -> String {
    format!("Turn {turn}: go on, and end with \"The answer is\" and a number.")
}

/// The turn that an environment of the simulation told of last in a text; 0 where it did not.
pub(in crate::sim) fn turn_told(text: &str) -> u64 {
    let told = text.rmatch_indices("Turn ").find_map(|(at, mark)| {
        let after = text.get(at + mark.len()..)?;
        let (number, _) = after.split_once(':')?;
        number.parse().ok()
    });
    told.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_turn_counts() {
        let text = format!("6 rows of 7? {} Turn left: {}", go_on(1), go_on(12));
        assert_eq!(turn_told(&text), 12);
        assert_eq!(turn_told("Turn left: at once"), 0);
        assert_eq!(turn_told(""), 0);
    }
}
