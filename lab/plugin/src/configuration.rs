//! The configuration of a plugin: JSON in the file that its argument `config=` names.

use serde::de::DeserializeOwned;

/// Reads the configuration that the plugin's `arguments` name.
///
/// # Errors
///
/// Message to the user: there is another argument or none, or the file can't be read or is not what the
/// plugin wants.
pub fn configuration<C: DeserializeOwned>(arguments: &[String]) -> Result<C, String> {
    let mut file = None;
    for argument in arguments {
        match argument.split_once('=') {
            Some(("config", path)) => file = Some(path),
            _ => {
                return Err(format!(
                    "unknown argument `{argument}`; the only one is config=FILE"
                ));
            }
        }
    }
    let file = file.ok_or("say where the configuration is: config=FILE")?;
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("can't read {file}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told() {
        let error = |arguments: &[&str]| {
            let arguments: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
            configuration::<u32>(&arguments).unwrap_err()
        };
        assert!(error(&[]).contains("config=FILE"));
        assert!(error(&["file=x"]).contains("unknown argument `file=x`"));
        assert!(error(&["config=/nonexistent/x"]).starts_with("can't read /nonexistent/x"));
    }
}
