//! Makes an input that breaks a target smaller.

use super::attempt;
use crate::Target;

/// Most attempts; a target may be slow.
const ATTEMPTS: usize = 2000;

/// Leaves out and zeroes as many bytes of the input as it can, as long as the target still breaks.
pub fn shrink(target: &Target, mut input: Vec<u8>, mut words: String) -> (Vec<u8>, String) {
    let mut left = ATTEMPTS;
    let mut piece = input.len().next_power_of_two();
    while piece > 0 {
        let mut at = 0;
        while at < input.len() {
            if left == 0 {
                return (input, words);
            }
            left -= 1;
            let end = (at + piece).min(input.len());
            let mut smaller = input.clone();
            smaller.drain(at..end);
            if let Err(new) = attempt(target, &smaller) {
                (input, words) = (smaller, new);
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    for at in 0..input.len() {
        if left == 0 {
            break;
        }
        let old = std::mem::take(&mut input[at]);
        if old == 0 {
            continue;
        }
        left -= 1;
        match attempt(target, &input) {
            Err(new) => words = new,
            Ok(()) => input[at] = old,
        }
    }
    (input, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaks(input: &[u8]) {
        assert!(!input.windows(2).any(|two| two == [7, 9]), "seven and nine");
    }

    #[test]
    fn what_does_not_matter_goes() {
        let target = Target {
            name: "t",
            seeds: Vec::new,
            words: &[],
            run: breaks,
        };
        let mut input = vec![1; 300];
        input.splice(120..120, [7, 9]);
        let words = attempt(&target, &input).unwrap_err();
        let (small, _) = shrink(&target, input, words);
        assert_eq!(small, [7, 9]);
    }
}
