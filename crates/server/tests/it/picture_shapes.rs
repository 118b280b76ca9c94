//! Pictures in the shapes of clients: where they stand in a request, and what stands beside them.

use serde_json::{Value, json};

use crate::pictures::{CHAT, RESPONSES, base64, image, server, text, url, user};

/// A client that drives a computer answers a call with a picture of the screen.
#[test]
fn screenshots_of_computers_are_pictures() {
    let server = server();
    let input = |output: Value| {
        let click = json!({"type": "click", "button": "left", "x": 3, "y": 4});
        json!({"max_output_tokens": 2, "input": [
            {"role": "user", "content": "Press it."},
            {"type": "computer_call", "id": "cu_1", "call_id": "c", "status": "completed",
                "action": click, "pending_safety_checks": []},
            {"type": "computer_call_output", "call_id": "c", "acknowledged_safety_checks": [],
                "output": output},
        ]})
    };
    let screenshot = json!({"type": "computer_screenshot", "image_url": url("a.png")});
    let (status, answer) = server.post(RESPONSES, &input(screenshot));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 1);
    // Anything else is a result like all others.
    for output in [
        json!({"type": "computer_screenshot", "file_id": "f"}),
        json!({"type": "computer_screenshot"}),
        json!({"type": "computer_screenshot", "image_url": "a"}),
        json!({"type": "text", "text": "done"}),
        json!("done"),
    ] {
        let (status, answer) = server.post(RESPONSES, &input(output));
        assert_eq!(status, 200, "{answer}");
    }
    let (status, error) = server.post(RESPONSES, &input(json!(5)));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("input[2].output")), "{error}");
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 1);
}

/// Open WebUI as a client of the OpenAI API: the words of a message, which may be empty, and then
/// its pictures. Fields of its own are beside those of the API.
#[test]
fn open_webui_sends_pictures_to_chats() {
    let server = server();
    let turns = [
        user(&[text("What is it?"), image(&url("a.png"))]),
        json!({"role": "assistant", "content": "A picture."}),
        user(&[text(""), image(&url("a.png")), image(&url("b.png"))]),
    ];
    let plain = json!({"messages": turns, "max_tokens": 2});
    let mut body = plain.clone();
    let picture = json!({"type": "image", "url": url("a.png")});
    body["messages"][0]["files"] = json!([picture]);
    body["messages"][0]["id"] = json!("6e3b");
    body["messages"][1]["model"] = json!("gemma");
    body["messages"][1]["timestamp"] = json!(1_700_000_000);
    for (field, value) in [
        ("stream", json!(false)),
        ("params", json!({})),
        ("files", json!([picture])),
        ("features", json!({"image_generation": false, "web_search": false})),
        ("variables", json!({"{{USER_NAME}}": "a"})),
        ("model_item", json!({"id": "gemma"})),
        ("session_id", json!("s")),
        ("chat_id", json!("c")),
        ("id", json!("m")),
        ("background_tasks", json!({"title_generation": true})),
        ("metadata", json!({"chat_id": "c"})),
    ] {
        body[field] = value;
    }
    let mut counts = Vec::new();
    for body in [plain, body] {
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 200, "{answer}");
        counts.push(answer["usage"]["prompt_tokens"].clone());
    }
    assert_eq!(counts[0], counts[1], "what is beside the API's fields is not read");
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 2);
}

/// As a client of Ollama: a message has its pictures as `images` and no `content` if it has no
/// words, a call has its number in `index` and words that are empty.
#[test]
fn open_webui_sends_pictures_to_ollamas_chats() {
    let server = server();
    let call = json!({"index": 0, "id": "c", "function": {"name": "f", "arguments": {}}});
    let body = |first: Value| {
        json!({
            "model": "seeing", "stream": false, "options": {"num_predict": 2, "stop": ["###"]},
            "metadata": {"chat_id": "c"}, "messages": [
                first,
                {"role": "assistant", "tool_calls": [call], "content": ""},
                {"role": "tool", "content": "done", "tool_call_id": "c"},
                {"role": "user", "content": "And this?", "images": [base64("b.png")]},
            ],
        })
    };
    let counts = [
        json!({"role": "user", "images": [base64("a.png")]}),
        json!({"role": "user", "content": "", "images": [base64("a.png")]}),
        json!({"role": "user", "content": null, "images": [base64("a.png")]}),
        json!({"role": "user", "content": "", "images": [url("a.png")]}),
    ]
    .map(|first| {
        let (status, answer) = server.post("/api/chat", &body(first));
        assert_eq!(status, 200, "{answer}");
        answer["prompt_eval_count"].clone()
    });
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 2);
}
