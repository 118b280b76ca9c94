//! Serves a model over HTTP, in every dialect of `trine serve`:
//! `cargo run --release -p trine-session --example serve -- demo`

use std::sync::Arc;

use anyhow::{Result, anyhow};
use trine_server::{Server, ServerOptions};
use trine_session::serving::{Models, Names, served};
use trine_session::{Download, ModelLibrary, Options};

#[tokio::main]
async fn main() -> Result<()> {
    let model = std::env::args().nth(1);
    let server = bind(model.as_deref().unwrap_or("demo"), 8080).await?;
    println!("http://{}/", server.address());
    server.run().await;
    Ok(())
}

pub(crate) async fn bind(model: &str, port: u16) -> Result<Server> {
    let library = ModelLibrary::default();
    let open = |model: &str| served(&library, model, Download::Never);
    let names = Names::fixed(vec![open(model)?], &[], open)?;
    let models = Models::new(library.clone(), names, Options::default());
    let options = ServerOptions { port, ..ServerOptions::default() };
    let server = Server::bind(options, Arc::new(models)).await?;
    server.preload().await.map_err(|problem| anyhow!(problem))?;
    Ok(server)
}
