//! The dialects: how each asks, answers, ends a stream and spells an error.

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::client::Answer;
use crate::harness::TEXT;

/// A way to ask for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Chat,
    Completion,
    Response,
    Message,
    OllamaChat,
    OllamaGenerate,
}

impl Dialect {
    pub(crate) const ALL: [Dialect; 6] = [
        Self::Chat,
        Self::Completion,
        Self::Response,
        Self::Message,
        Self::OllamaChat,
        Self::OllamaGenerate,
    ];

    pub(crate) fn any(random: &mut StdRng) -> Self {
        Self::ALL[random.random_range(0..Self::ALL.len())]
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
            Self::Response => "/v1/responses",
            Self::Message => "/v1/messages",
            Self::OllamaChat => "/api/chat",
            Self::OllamaGenerate => "/api/generate",
        }
    }

    /// A request for `tokens` tokens.
    pub(crate) fn body(self, random: &mut StdRng, tokens: usize, stream: bool) -> Value {
        let text = words(random);
        let messages = json!([{"role": "user", "content": text}]);
        match self {
            Self::Chat => json!({"messages": messages, "max_tokens": tokens, "stream": stream}),
            Self::Completion => json!({"prompt": text, "max_tokens": tokens, "stream": stream}),
            Self::Response => {
                json!({"input": text, "max_output_tokens": tokens, "stream": stream})
            }
            Self::Message => json!({"messages": messages, "max_tokens": tokens, "stream": stream}),
            Self::OllamaChat => json!({
                "model": "main", "messages": messages, "options": {"num_predict": tokens},
                "stream": stream,
            }),
            Self::OllamaGenerate => json!({
                "model": "main", "prompt": text, "options": {"num_predict": tokens},
                "stream": stream,
            }),
        }
    }

    /// What the model has written, in a whole answer.
    fn written(self, answer: &Value) -> &str {
        let text = match self {
            Self::Chat => &answer["choices"][0]["message"]["content"],
            Self::Completion => &answer["choices"][0]["text"],
            Self::Response => &answer["output"][0]["content"][0]["text"],
            Self::Message => &answer["content"][0]["text"],
            Self::OllamaChat => &answer["message"]["content"],
            Self::OllamaGenerate => &answer["response"],
        };
        text.as_str().unwrap_or_else(|| panic!("{self:?}: no text in {answer}"))
    }

    /// What the model has written, in a piece of a stream; empty where the piece is about something
    /// else.
    fn piece(self, piece: &Value) -> &str {
        let text = match self {
            Self::Chat => &piece["choices"][0]["delta"]["content"],
            Self::Completion => &piece["choices"][0]["text"],
            Self::Response if piece["type"] == "response.output_text.delta" => &piece["delta"],
            Self::Response => &Value::Null,
            Self::Message => &piece["delta"]["text"],
            Self::OllamaChat => &piece["message"]["content"],
            Self::OllamaGenerate => &piece["response"],
        };
        text.as_str().unwrap_or_default()
    }

    /// Whether a stream may end with this piece.
    fn is_end(self, piece: &Value) -> bool {
        match self {
            Self::Chat | Self::Completion => piece == "[DONE]",
            Self::Response => {
                piece["type"] == "response.incomplete" || piece["type"] == "response.completed"
            }
            Self::Message => piece["type"] == "message_stop",
            Self::OllamaChat | Self::OllamaGenerate => piece["done"] == true,
        }
    }

    /// Fails unless the answer is an error as the dialect spells it.
    pub(crate) fn check_error(self, answer: &Answer) {
        let body = answer.json();
        let is_spelled = match self {
            Self::Chat | Self::Completion | Self::Response => {
                ["message", "type", "code"].iter().all(|field| body["error"][field].is_string())
            }
            Self::Message => body["type"] == "error" && body["error"]["type"].is_string(),
            Self::OllamaChat | Self::OllamaGenerate => body["error"].is_string(),
        };
        assert!(is_spelled, "{self:?}: {}: {body}", answer.status);
        let says_when = answer.header("retry-after").is_some();
        assert!(says_when || answer.status != 503, "{self:?}: {body}");
    }

    /// Fails unless the answer is a whole text. `is_script` says that it must be the model's own.
    pub(crate) fn check_text(self, answer: &Answer, stream: bool, is_script: bool) {
        let text = if stream {
            let pieces = self.pieces(answer);
            let last = pieces.last().expect("a stream has pieces");
            assert!(self.is_end(last), "{self:?}: a stream without its end: {last}");
            pieces.iter().map(|piece| self.piece(piece)).collect::<String>()
        } else if is_script {
            self.written(&answer.json()).to_owned()
        } else {
            assert!(answer.json().is_object());
            return;
        };
        let is_own = TEXT.repeat(30).contains(text.trim());
        assert!(is_own || !is_script, "{self:?}: another's text: {text:?}");
    }

    fn pieces(self, answer: &Answer) -> Vec<Value> {
        if !matches!(self, Self::OllamaChat | Self::OllamaGenerate) {
            return answer.events();
        }
        let text = std::str::from_utf8(&answer.body).expect("a stream is UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }
}

/// A prompt: a beginning that others share, and words of its own.
pub(crate) fn words(random: &mut StdRng) -> String {
    const BEGINNINGS: [&str; 4] = [
        "Tell me",
        "Once upon a time there was a small house at the end of the long road, and in it",
        "You are a kind teller of tales who never uses a hard word where a soft one will do. Tell \
         me about",
        "",
    ];
    const WORDS: [&str; 12] =
        ["bird", "tree", "a", "the", "sun", "and", "sea", "house", "old", "little", "red", "dog"];
    let mut text = BEGINNINGS[random.random_range(0..BEGINNINGS.len())].to_owned();
    for _ in 0..random.random_range(1..40) {
        text.push(' ');
        text.push_str(WORDS[random.random_range(0..WORDS.len())]);
    }
    text
}
