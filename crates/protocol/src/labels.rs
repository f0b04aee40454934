//! Labels: short key-value pairs that a client puts on tasks and sessions, to find them and their events by.

use std::collections::BTreeMap;

use crate::error::RpcError;

/// The labels of a task or session, by key.
pub type Labels = BTreeMap<String, String>;

/// How many labels a task or session may have.
pub const MAX_LABELS: usize = 32;
/// How long the key of a label may be, in bytes.
pub const MAX_KEY_BYTES: usize = 64;
/// How long the value of a label may be, in bytes.
pub const MAX_VALUE_BYTES: usize = 256;

/// Checks the labels in the parameter `field`.
pub fn check_labels(field: &str, labels: &Labels) -> Result<(), RpcError> {
    if labels.len() > MAX_LABELS {
        let message = format!("{} labels are given, and at most {MAX_LABELS} are allowed", labels.len());
        return Err(RpcError::invalid(field, message));
    }
    labels.iter().try_for_each(|(key, value)| check_label(field, key, value))
}

/// Whether `labels` contains all of `wanted`.
pub fn has_labels(wanted: &Labels, labels: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn check_label(field: &str, key: &str, value: &str) -> Result<(), RpcError> {
    let is_key_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(is_key_byte) {
        let message =
            "the key of a label must have 1 to 64 characters of a-z, A-Z, 0-9, '-', '_', '.' and '/'";
        return Err(RpcError::invalid(field, message).hint("for example team=web"));
    }
    if value.len() > MAX_VALUE_BYTES {
        let message = format!("the value of label {key} is longer than {MAX_VALUE_BYTES} bytes");
        return Err(RpcError::invalid(field, message));
    }
    if value.chars().any(char::is_control) {
        let message = format!("the value of label {key} contains a control character");
        return Err(RpcError::invalid(field, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, value: &str) -> Option<String> {
        let labels = Labels::from([(key.to_owned(), value.to_owned())]);
        check_labels("labels", &labels).err().map(|error| error.message)
    }

    #[test]
    fn label_bounds_are_checked() {
        assert_eq!(check("team", "web"), None);
        assert_eq!(check("org.example/team", ""), None);
        assert_eq!(check("team", &"x".repeat(MAX_VALUE_BYTES)), None);
        assert!(check("", "x").is_some());
        assert!(check("a b", "x").is_some());
        assert!(check("a=b", "x").is_some());
        assert!(check(&"k".repeat(MAX_KEY_BYTES + 1), "x").is_some());
        assert!(check("team", &"x".repeat(MAX_VALUE_BYTES + 1)).is_some());
        assert!(check("team", "a\nb").is_some());
        let many = (0..=MAX_LABELS).map(|n| (n.to_string(), String::new())).collect();
        assert!(check_labels("labels", &many).is_err());
    }
}
