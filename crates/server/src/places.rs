//! The places in a request of fields that were put into the form of chats, so that errors name the
//! request's own fields.

/// Fields in the form of chats, each with its place in the request.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<(String, String)>);

impl Places {
    /// Adds the place of a field, and with it of everything within the field that has no place of
    /// its own.
    pub(crate) fn add(&mut self, field: impl Into<String>, place: impl Into<String>) {
        self.0.push((field.into(), place.into()));
    }

    /// Returns the place of a field in the request: that of the smallest field around it, and the
    /// rest of its path.
    pub(crate) fn of(&self, field: &str) -> Option<String> {
        let within = |(outer, place): &(String, String)| {
            let rest = field.strip_prefix(outer.as_str())?;
            let is_within = rest.is_empty() || rest.starts_with(['.', '[']);
            is_within.then(|| (outer.len(), format!("{place}{rest}")))
        };
        let found = self.0.iter().filter_map(within).max_by_key(|(length, _)| *length);
        found.map(|(_, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_field_around_it_has_the_place() {
        let mut places = Places::default();
        places.add("tools[1]", "tools[2]");
        places.add("tools[1].function.parameters", "tools[2].input_schema");
        places.add("tools[1].function", "tools[2]");
        for (field, place) in [
            ("tools[1].function.parameters.type", Some("tools[2].input_schema.type")),
            ("tools[1].function.name", Some("tools[2].name")),
            ("tools[1].type", Some("tools[2].type")),
            ("tools[1]", Some("tools[2]")),
            ("tools[11].type", None),
            ("tools", None),
        ] {
            assert_eq!(places.of(field).as_deref(), place, "{field}");
        }
    }
}
