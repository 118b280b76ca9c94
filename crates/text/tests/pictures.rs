//! Pictures in prompts: their forms, beside another implementation's tokenizer, and that no text of
//! a user becomes one.
use crate::common;
use crate::gemma4;

use crate::common::{json, read};
use serde_json::{Value, json};
use trine_text::{
    ChatTemplate, Content, Message, Offer, Part, PictureForm, PicturePrompt, RenderOptions,
    Specials, TextError, Tokenizer, ToolChoice, Tools, reply_format,
};

const SOFT: u32 = u32::MAX;

/// The golden vocabulary with the control tokens for pictures; the last one is the soft token.
const ADDED: [&str; 3] = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"];

fn file() -> Value {
    let mut file = json("tokenizer/tokenizer.json");
    for name in ADDED {
        let id = file["model"]["vocab"].as_object().unwrap().len();
        file["model"]["vocab"][name] = id.into();
        let added = json!({
            "id": id, "content": name, "special": true,
                "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false,
        });
        file["added_tokens"].as_array_mut().unwrap().push(added);
    }
    file
}

fn gemma3() -> Tokenizer {
    Tokenizer::from_json_bytes(file().to_string().as_bytes()).unwrap()
}

/// A vocabulary of Gemma 4 with its tokens for pictures.
fn gemma4() -> Tokenizer {
    let mut vocabulary = gemma4::vocabulary(4);
    vocabulary.tokens[113] = b"<|image>".to_vec();
    vocabulary.tokens[114] = b"<image|>".to_vec();
    Tokenizer::from_gguf(vocabulary).unwrap()
}

fn cut(tokenizer: &Tokenizer, text: &str, lengths: &[usize]) -> Result<PicturePrompt, TextError> {
    let form = PictureForm::of(tokenizer).unwrap();
    form.encode_prompt(tokenizer, text, Specials::ParseGuarded, lengths, SOFT)
}

#[test]
fn forms_are_known_by_control_tokens() {
    assert_eq!(PictureForm::of(&gemma3()).unwrap().mark(), "<start_of_image>");
    assert_eq!(PictureForm::of(&gemma4()).unwrap().mark(), "<|image|>");
    assert_eq!(PictureForm::of(&common::from_json("tokenizer")), None);
    assert_eq!(PictureForm::of(&Tokenizer::from_gguf(gemma4::vocabulary(4)).unwrap()), None);
}

/// Gemma 3's form as transformers writes it, cut by the `tokenizers` crate.
#[test]
fn gemma_3_is_cut_as_the_whole_text() {
    let tokenizer = gemma3();
    let oracle = tokenizers::Tokenizer::from_bytes(file().to_string()).unwrap();
    let soft = tokenizer.token_to_id(ADDED[2]).unwrap();
    for (text, lengths) in [
        ("<bos>a<start_of_image>b", &[4][..]),
        ("<bos><start_of_turn>user\n<start_of_image>What is this?<end_of_turn>\n", &[256]),
        ("<bos>\n\n<start_of_image>\n\n\nwords", &[3]),
        ("<bos>x\n<start_of_image><start_of_image>\ny <start_of_image>", &[2, 5, 1]),
        ("<start_of_image>", &[0]),
        ("<bos>no pictures\n\n", &[]),
    ] {
        let mut left = lengths.iter();
        let expanded: String = text
            .split_inclusive(ADDED[0])
            .map(|stretch| match stretch.strip_suffix(ADDED[0]) {
                None => stretch.to_owned(),
                Some(before) => {
                    let run = ADDED[2].repeat(*left.next().unwrap());
                    format!("{before}\n\n{}{run}{}\n\n", ADDED[0], ADDED[1])
                }
            })
            .collect();
        let mut expected = oracle.encode(expanded, false).unwrap().get_ids().to_vec();
        if expected.first() != Some(&2) {
            expected.insert(0, 2);
        }
        let found = cut(&tokenizer, text, lengths).unwrap();
        let ids: Vec<u32> =
            found.ids.iter().map(|&id| if id == SOFT { soft } else { id }).collect();
        assert_eq!(ids, expected, "{text:?}");
        check_runs(&found, lengths);
    }
}

/// Each start is that of a run of its length, between two tokens that are not soft.
#[track_caller]
fn check_runs(prompt: &PicturePrompt, lengths: &[usize]) {
    assert_eq!(prompt.starts.len(), lengths.len());
    for (&start, &length) in prompt.starts.iter().zip(lengths) {
        assert!(prompt.ids[start..start + length].iter().all(|&id| id == SOFT));
        assert_ne!(prompt.ids[start - 1], SOFT);
        assert_ne!(prompt.ids[start + length], SOFT);
    }
    let soft = prompt.ids.iter().filter(|&&id| id == SOFT).count();
    assert_eq!(soft, lengths.iter().sum::<usize>());
}

#[test]
fn gemma_4_has_runs_without_line_breaks() {
    let tokenizer = gemma4();
    let found = cut(&tokenizer, "<bos>a\n<|image|><|image|>\nb", &[2, 1]).unwrap();
    let [begin, end] = ["<|image>", "<image|>"].map(|name| tokenizer.token_to_id(name).unwrap());
    let text = |text: &str| tokenizer.encode(text, Specials::AsText).unwrap();
    let pictures = [begin, SOFT, SOFT, end, begin, SOFT, end];
    let expected = [&[2][..], &text("a\n"), &pictures, &text("\nb")].concat();
    assert_eq!(found.ids, expected);
    check_runs(&found, &[2, 1]);
}

#[test]
fn each_picture_needs_its_mark() {
    let tokenizer = gemma3();
    for (text, lengths, shown) in [
        ("<bos>a", &[4][..], 0),
        ("<bos><start_of_image>", &[], 1),
        ("<bos><start_of_image>a", &[4, 4], 1),
    ] {
        let (pictures, mark) = (lengths.len(), "<start_of_image>");
        let expected = TextError::Pictures { shown, pictures, mark };
        assert_eq!(cut(&tokenizer, text, lengths), Err(expected), "{text}");
    }
    // Without control tokens a mark is text.
    let form = PictureForm::of(&tokenizer).unwrap();
    let text = form.encode_prompt(&tokenizer, "<start_of_image>", Specials::AsText, &[], SOFT);
    assert!(text.unwrap().starts.is_empty());
    // A template that writes what stands for a mark itself.
    let found = cut(&gemma4(), "<bos><|image><image|><|image|>", &[1]);
    assert!(matches!(found, Err(TextError::Pictures { shown: 2, pictures: 1, .. })), "{found:?}");
}

/// Returns every control token of a vocabulary.
fn controls(tokenizer: &Tokenizer) -> Vec<String> {
    let ids = 0..tokenizer.vocabulary_size() as u32;
    let ids = ids.filter(|&id| tokenizer.is_special(id));
    ids.map(|id| tokenizer.piece(id).unwrap().into_owned()).collect()
}

/// A conversation with two pictures and a hostile text wherever a user can put one.
fn hostile(text: &str, tokenizer: &Tokenizer, template: &ChatTemplate) -> (Vec<Message>, Value) {
    let tools = json!([{"type": "function", "function": {
        "name": "f",
            "description": text,
            "parameters": {"type": "object",
            "properties": {"p": {"type": "string",
            "description": text}}},
    }}]);
    // A message that would be all thoughts would be left out.
    let mut made = Message::new("assistant", format!("words {text}"));
    let call = json!([{"id": "1", "function": {"name": "f", "arguments": {"p": text}}}]);
    made.extra.insert("tool_calls".to_owned(), call);
    let parts = vec![Part::text(text), Part::picture(), Part::text(text)];
    let mut result = Message::new("tool", Content::Parts(parts));
    result.extra.insert("tool_call_id".to_owned(), "1".into());
    let mut user = Message::new("user", text);
    user.extra.insert("name".to_owned(), text.into());
    let asked = vec![Part::picture(), Part::text(text), Part::text(text)];
    let messages = vec![
        Message::new("system", text),
        user,
        made,
        result,
        Message::new("user", Content::Parts(asked)),
    ];
    let tools_read = Tools::from_openai(&tools).unwrap();
    let offer = Offer { tools: &tools_read, choice: &ToolChoice::Auto, parallel: true };
    let written = reply_format(tokenizer, Some(template)).write(messages, &offer).unwrap();
    let variables = Value::Object(written.variables);
    (template.arranged(written.messages), variables)
}

#[test]
fn no_text_of_a_user_becomes_a_picture() {
    for (tokenizer, template) in
        [(gemma3(), ChatTemplate::gemma()), (gemma4(), ChatTemplate::gemma4(true))]
    {
        let prompt = |text: &str| {
            let (messages, variables) = hostile(text, &tokenizer, &template);
            let messages: Vec<Message> =
                messages.into_iter().map(|message| message.guarded(&tokenizer)).collect();
            // Guarded as the fields of a message are.
            let carrier =
                Message { extra: variables.as_object().unwrap().clone(), ..Message::default() };
            let options = RenderOptions {
                extra: carrier.guarded(&tokenizer).extra,
                ..RenderOptions::default()
            };
            let rendered = template.render(&messages, &options).unwrap();
            let found = cut(&tokenizer, &rendered, &[3, 2])
                .unwrap_or_else(|error| panic!("{text}: {error}: {rendered}"));
            check_runs(&found, &[3, 2]);
            let ids = found.ids.into_iter();
            ids.filter(|&id| id == SOFT || tokenizer.is_special(id)).collect::<Vec<u32>>()
        };
        let plain = prompt("words");
        for control in controls(&tokenizer) {
            for text in [
                control.clone(),
                control.repeat(3),
                format!("{control}{}", &control[..1]),
                control[1..].to_owned(),
                control[..control.len() - 1].to_owned(),
            ] {
                assert_eq!(prompt(&text), plain, "{text}");
            }
        }
    }
}

/// Marks of parts as transformers renders them are as many as the parts.
#[test]
fn golden_cases_with_pictures_are_cut() {
    let of_gemma3 = json("chat-template-cases.json");
    let of_gemma4 = json("gemma4-template-cases.json");
    let golden = ChatTemplate::new(String::from_utf8(read("chat_template.jinja")).unwrap());
    let mut cut_cases = 0;
    for (cases, tokenizer, templates) in [
        (&of_gemma3, gemma3(), vec![golden.unwrap(), ChatTemplate::gemma()]),
        (&of_gemma4["cases"], gemma4(), vec![ChatTemplate::gemma4(true)]),
    ] {
        for case in cases.as_array().unwrap() {
            let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
            let lengths: Vec<usize> = messages
                .iter()
                .flat_map(|message| message.content.pictures())
                .enumerate()
                .map(|(index, _)| index + 2)
                .collect();
            if lengths.is_empty() {
                continue;
            }
            for template in &templates {
                let add_generation_prompt = case["add_generation_prompt"].as_bool().unwrap();
                let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
                let rendered = template.render(&messages, &options).unwrap();
                assert_eq!(rendered, case["text"].as_str().unwrap());
                check_runs(&cut(&tokenizer, &rendered, &lengths).unwrap(), &lengths);
                cut_cases += 1;
            }
        }
    }
    assert_eq!(cut_cases, 5);
}

#[test]
fn results_keep_their_pictures() {
    let call = json!([{"id": "1", "function": {"name": "f", "arguments": {}}}]);
    let mut made = Message::new("assistant", "");
    made.extra.insert("tool_calls".to_owned(), call);
    let parts = vec![Part::picture(), Part::text("one"), Part::text("two"), Part::picture()];
    let mut result = Message::new("tool", Content::Parts(parts));
    result.extra.insert("tool_call_id".to_owned(), "1".into());
    let messages = vec![Message::new("user", "Do it."), made, result];
    let offer = Offer { tools: &Tools::default(), choice: &ToolChoice::Auto, parallel: true };
    let rendered = |tokenizer: &Tokenizer, template: &ChatTemplate| {
        let format = reply_format(tokenizer, Some(template));
        let written = format.write(messages.clone(), &offer).unwrap();
        template.render(&template.arranged(written.messages), &RenderOptions::default()).unwrap()
    };
    let text = rendered(&gemma3(), &ChatTemplate::gemma());
    let block = "```tool_output\n{\"name\": \"f\", \"content\": \"one\\ntwo\"}\n```";
    assert!(
        text.contains(&format!("{block}<start_of_image><start_of_image><end_of_turn>")),
        "{text}"
    );
    let text = rendered(&gemma4(), &ChatTemplate::gemma4(true));
    let block = "response:f{value:<|\"|>one\ntwo<|\"|>}<tool_response|>";
    assert!(text.ends_with(&format!("{block}<|image|><|image|>")), "{text}");
}
