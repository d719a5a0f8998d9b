//! "Did you mean": the known word that is nearest to a misspelt one.

use std::cmp::Reverse;

use strsim::levenshtein;

/// Says what a value has to be where these are all that it can be.
pub fn one_of<'a>(known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.into_iter().collect();
    match known[..] {
        [only] => format!("must be `{only}`"),
        _ => format!("must be one of: {}", known.join(", ")),
    }
}

/// The word of `known` that is at most a third of its letters away from `word`; of several, that which begins and ends most
/// like it.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| {
            let (distance, alike) = (levenshtein(word, candidate), alike(word, candidate));
            (distance, Reverse(alike), candidate)
        })
        .filter(|(distance, _, candidate)| *distance <= candidate.len().div_ceil(3))
        .min()
        .map(|(.., candidate)| candidate)
}

/// The remedy for a VM that is not described: the name that was meant, or what there is.
pub(super) fn other_vm<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(known) = nearest(word, known.clone()) {
        return format!("did you mean `{known}`?");
    }
    let known: Vec<&str> = known.collect();
    match known[..] {
        [] => format!("describe it: add a table [vm.{word}]"),
        _ => format!("the VMs here are {}", known.join(", ")),
    }
}

/// Letters that both begin with, and letters that both end with.
fn alike(one: &str, other: &str) -> usize {
    let begin = one.chars().zip(other.chars());
    let end = one.chars().rev().zip(other.chars().rev());
    begin.take_while(|(a, b)| a == b).count() + end.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_is_a_sentence_for_one_word_and_for_several() {
        assert_eq!(one_of(["none"]), "must be `none`");
        assert_eq!(one_of(["smc", "hvc"]), "must be one of: smc, hvc");
    }

    #[test]
    fn nearest_word_wins_and_far_words_do_not_count() {
        let known = ["memory", "kernel", "console"];
        assert_eq!(nearest("memroy", known), Some("memory"));
        assert_eq!(nearest("colnsole", known), Some("console"));
        assert_eq!(nearest("zzz", known), None);
        assert_eq!(nearest("helo", ["held", "hello", "hero"]), Some("hello"));
    }
}
