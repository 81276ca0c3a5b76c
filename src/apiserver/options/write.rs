//! Options of a write.

use crate::apiserver::{Status, query::Query};

/// Longest name of a field manager, in bytes.
pub(in crate::apiserver) const MAX_FIELD_MANAGER: usize = 128;

/// What becomes of fields that the schema does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apiserver) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of a write.
#[derive(Clone, Debug)]
pub(in crate::apiserver) struct WriteOptions {
    pub(in crate::apiserver) dry_run: bool,
    pub(in crate::apiserver) field_validation: FieldValidation,
}

impl WriteOptions {
    /// Reads the options of a write and checks `fieldManager`, which the request's context keeps; `kind` is the options' kind, for the error text.
    ///
    /// # Errors
    /// 422 for values that are none.
    pub(in crate::apiserver) fn parse(query: &Query, kind: &str) -> Result<Self, Status> {
        let invalid = |field, message| Status::invalid_option(kind, field, message);
        let dry_run = dry_run(query.all("dryRun")).map_err(|message| invalid("dryRun", message))?;
        let field_validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let other: String = other.chars().take(64).collect();
                let message = format!(
                    "Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
                );
                return Err(invalid("fieldValidation", message));
            }
        };
        let field_manager = query.get("fieldManager").unwrap_or_default();
        if field_manager.len() > MAX_FIELD_MANAGER {
            let message = format!("Too long: may not be more than {MAX_FIELD_MANAGER} bytes");
            return Err(invalid("fieldManager", message));
        }
        if field_manager.contains(char::is_control) {
            let message =
                format!("Invalid value: {field_manager:?}: must hold printable characters only");
            return Err(invalid("fieldManager", message));
        }
        Ok(Self {
            dry_run,
            field_validation,
        })
    }
}

/// Whether `dryRun` values ask for a dry run; the message for values that are none.
pub(in crate::apiserver) fn dry_run<'a>(
    values: impl Iterator<Item = &'a str>,
) -> Result<bool, String> {
    let mut asked = false;
    for value in values {
        if value != "All" {
            let value: String = value.chars().take(64).collect();
            return Err(format!(
                "Unsupported value: [{value:?}]: supported values: \"All\""
            ));
        }
        asked = true;
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_options_take_only_their_values() {
        let parse = |text: &str| {
            WriteOptions::parse(&Query::parse(text).unwrap(), "CreateOptions")
                .map_err(|s| s.code().as_u16())
        };
        assert!(parse("dryRun=All").unwrap().dry_run);
        assert_eq!(parse("dryRun=").unwrap_err(), 422);
        assert_eq!(parse("dryRun=Some").unwrap_err(), 422);
        assert_eq!(parse("dryRun=All&dryRun=x").unwrap_err(), 422);
        assert_eq!(parse("fieldValidation=Loud").unwrap_err(), 422);
        assert_eq!(
            parse(&format!("fieldManager={}", "x".repeat(129))).unwrap_err(),
            422
        );
        assert_eq!(parse("fieldManager=a%0Ab").unwrap_err(), 422);
        assert_eq!(
            parse("fieldValidation=Strict").unwrap().field_validation,
            FieldValidation::Strict
        );
    }
}
