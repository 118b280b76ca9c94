//! Parts of messages, as all dialects have them.

use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::request::history::about;

/// A part of a message.
#[derive(Debug)]
pub(crate) enum Given<'a> {
    /// Words of the speaker.
    Words(&'a str),
    /// Words of something else, such as a document, which stand in lines of their own.
    Lines(String),
    /// An image, which some models take.
    Image(&'a Value),
    /// The file of an image in base64.
    Base64(&'a Value),
    /// What no model here takes.
    Foreign { what: &'static str, about: String },
    /// What a model thought.
    Thought(String),
    /// What only the server that made it can read, with its type.
    Private(&'a str),
    /// Thoughts that only the server that made them can read.
    Sealed,
    /// A part of a type that is not known here.
    Unknown(&'a str),
}

/// Reads a part, which may stand for several; each with its field.
///
/// # Errors
/// 400 naming the field of a part that has no type, or not what its type says.
pub(crate) fn read<'a>(part: &'a Value, path: &str) -> Result<Vec<(String, Given<'a>)>, ApiError> {
    let Some(kind) = part.get("type").and_then(Value::as_str) else {
        return Err(wrong(path, "must be a text or an image, an object whose type says which"));
    };
    let text = |field: &str| part.get(field).and_then(Value::as_str);
    let one = match kind {
        "text" | "input_text" | "output_text" | "summary_text" => {
            Given::Words(text("text").ok_or_else(|| wrong(path, "has no text"))?)
        }
        "refusal" => Given::Words(text("refusal").or(text("text")).unwrap_or_default()),
        "image_url" | "input_image" | "image" => Given::Image(part),
        "thinking" | "reasoning" | "reasoning_text" => Given::Thought(thought(part)),
        "redacted_thinking" => Given::Sealed,
        "document" => return document(part, path),
        "search_result" => return Ok(search_result(part, path)),
        "tool_reference" => {
            let name = text("tool_name").or(text("name")).unwrap_or_default();
            Given::Lines(format!("[the tool {} can be called]", shown(name)))
        }
        // A summary of what was before it.
        "compaction" => match text("content") {
            Some(summary) => Given::Words(summary),
            None => Given::Private(kind),
        },
        "fallback" | "container_upload" | "mcp_tool_listing" => Given::Private(kind),
        "input_audio" | "audio" | "audio_url" => {
            let sound = part.get("input_audio").unwrap_or(&Value::Null);
            let format = sound.get("format").and_then(Value::as_str);
            let media_type = format.map(|format| format!("audio/{format}"));
            Given::Foreign { what: "sound", about: about(media_type.as_deref(), name_of(part)) }
        }
        "video_url" | "input_video" | "video" => {
            Given::Foreign { what: "video", about: about(None, name_of(part)) }
        }
        "file" | "input_file" => {
            let file = part.get("file").filter(|file| file.is_object()).unwrap_or(part);
            let data = file.get("file_data").and_then(Value::as_str);
            Given::Foreign { what: "file", about: about(data.and_then(media_type), name_of(file)) }
        }
        kind => Given::Unknown(kind),
    };
    Ok(vec![(path.to_owned(), one)])
}

fn wrong(path: &str, what: &str) -> ApiError {
    ApiError::field(path, format!("{path} {what}"))
}

/// Returns the name of a file, as clients write it.
fn name_of(part: &Value) -> Option<&str> {
    let names = ["filename", "file_name", "title", "name"];
    names.iter().find_map(|name| part.get(name).and_then(Value::as_str))
}

/// Returns the media type of a data URL.
fn media_type(url: &str) -> Option<&str> {
    url.strip_prefix("data:")?.split([';', ',']).next()
}

/// Returns the media type and name of an image, as far as its part or file says so.
pub(crate) fn about_image(part: &Value) -> String {
    let source = part.get("source").unwrap_or(&Value::Null);
    let url = part.get("image_url").unwrap_or(&Value::Null);
    let url = url.get("url").unwrap_or(url);
    let urls = [Some(url), source.get("url"), source.get("data"), Some(part)].into_iter().flatten();
    let of_url = urls.filter_map(Value::as_str).find_map(media_type);
    let declared = source.get("media_type").and_then(Value::as_str);
    about(of_url.or(declared), name_of(part))
}

/// Returns the words of something that a model thought: a text, an object with one, or a list.
pub(crate) fn thought(value: &Value) -> String {
    let fields = ["thinking", "reasoning", "text", "content", "summary"];
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let texts = items.iter().map(thought).filter(|text| !text.is_empty());
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Object(map) => {
            let texts = fields.iter().filter_map(|field| map.get(*field)).map(thought);
            texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// Returns words with the head of a document: its title and where it is from.
fn with_head(what: &str, facts: [Option<&str>; 2], words: &str) -> Given<'static> {
    let facts: Vec<&str> = facts.into_iter().flatten().filter(|fact| !fact.is_empty()).collect();
    let head = if facts.is_empty() { String::new() } else { format!(": {}", facts.join(", ")) };
    Given::Lines(format!("[{what}{head}]\n{words}"))
}

/// Reads a document, whose source may be words, parts, or a file.
fn document<'a>(part: &'a Value, path: &str) -> Result<Vec<(String, Given<'a>)>, ApiError> {
    let source = part.get("source").unwrap_or(&Value::Null);
    let text = |value: &'a Value, field: &str| value.get(field).and_then(Value::as_str);
    let facts = [text(part, "title"), text(part, "context")];
    let own = |given| vec![(path.to_owned(), given)];
    let field = |name: &str| format!("{path}.source.{name}");
    match text(source, "type") {
        Some("text") => {
            let words =
                text(source, "data").ok_or_else(|| wrong(&field("data"), "must be a text"))?;
            Ok(own(with_head("document", facts, words)))
        }
        Some("content") => match source.get("content") {
            Some(Value::String(words)) => Ok(own(with_head("document", facts, words))),
            Some(Value::Array(parts)) => {
                let mut all = own(with_head("document", facts, ""));
                for (index, part) in parts.iter().enumerate() {
                    let path = format!("{}[{index}]", field("content"));
                    // The API has texts and images here, and no document within another one.
                    match part.get("type").and_then(Value::as_str) {
                        Some("document") => all.push((path, Given::Unknown("document"))),
                        _ => all.extend(read(part, &path)?),
                    }
                }
                Ok(all)
            }
            _ => Err(wrong(&field("content"), "must be a text or a list of parts")),
        },
        kind => {
            let declared = text(source, "media_type");
            let declared = declared.or(kind.is_some().then_some("application/pdf"));
            let about = about(declared, text(part, "title").or(name_of(part)));
            Ok(own(Given::Foreign { what: "document", about }))
        }
    }
}

/// Reads a result of a search, which is words.
fn search_result<'a>(part: &'a Value, path: &str) -> Vec<(String, Given<'a>)> {
    let text = |field: &str| part.get(field).and_then(Value::as_str);
    let words = part.get("content").map(thought).unwrap_or_default();
    let given = with_head("search result", [text("title"), text("source")], &words);
    vec![(path.to_owned(), given)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The forms of Anthropic's API: anthropic 2.14.0,
    /// `types/beta/beta_request_document_block_param.py` and `beta_search_result_block_param.py`.
    #[test]
    fn words_of_documents_are_read_with_title_and_source() {
        let read = |part: Value| {
            let all = read(&part, "p").unwrap();
            let lines = all.into_iter().map(|(path, given)| match given {
                Given::Lines(text) => text,
                Given::Words(text) => text.to_owned(),
                given => format!("{path}: {given:?}"),
            });
            lines.collect::<Vec<_>>().join("|")
        };
        let document = |source: Value| {
            json!({"type": "document", "title": "T", "context": "C",
                "source": source})
        };
        let plain = json!({"type": "text", "media_type": "text/plain", "data": "words"});
        assert_eq!(read(document(plain)), "[document: T, C]\nwords");
        let content = json!({"type": "content", "content": [{"type": "text", "text": "words"}]});
        assert_eq!(read(document(content)), "[document: T, C]\n|words");
        let content = json!({"type": "content", "content": "words"});
        assert_eq!(read(document(content)), "[document: T, C]\nwords");
        let found = json!({
            "type": "search_result", "source": "https://a.example", "title": "T",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        });
        assert_eq!(read(found), "[search result: T, https://a.example]\none\ntwo");
        let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="});
        let pdf = read(document(pdf));
        assert!(pdf.contains("document") && pdf.contains(r#"application/pdf, \"T\""#), "{pdf}");
    }

    #[test]
    fn thoughts_are_found_in_each_form() {
        for value in [
            json!("a"),
            json!({"text": "a"}),
            json!({"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}),
            json!([{"type": "reasoning", "summary": [{"text": "a"}]}]),
            json!({"content": null, "reasoning": "a"}),
        ] {
            assert_eq!(thought(&value), "a", "{value}");
        }
        assert_eq!(thought(&json!({"encrypted": "x", "n": 1})), "");
    }
}
