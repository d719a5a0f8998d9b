//! Numbers of things in messages.

/// "1 VM", "2 VMs".
pub fn count(number: usize, what: &str) -> String {
    if number == 1 {
        format!("1 {what}")
    } else {
        format!("{number} {what}s")
    }
}
