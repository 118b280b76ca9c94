//! TLS by files. The certificate is for `localhost` and only for tests.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client;
use crate::harness::Harness;

fn start() -> Harness {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    Harness::with(|options| {
        options.tls = Some((folder.join("localhost.pem"), folder.join("localhost-key.pem")));
        options.limits.handshake = Duration::from_millis(300);
    })
}

fn connect(server: &Harness) -> StreamOwned<ClientConnection, TcpStream> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/localhost.pem");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(path).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, client::connect(server.address))
}

#[test]
fn requests_are_answered_over_tls() {
    let server = start();
    let mut stream = connect(&server);
    stream.write_all(client::head("GET", "/health", &[]).as_bytes()).unwrap();
    assert_eq!(client::read(&mut BufReader::new(stream), "GET").status, 200);
}

/// Rows 77 and 83: a handshake that does not come, and plain text where TLS is spoken.
#[test]
fn what_is_no_handshake_is_closed() {
    let server = start();
    for bytes in [&b""[..], b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01"] {
        let mut stream = client::connect(server.address);
        stream.write_all(bytes).unwrap();
        let started = Instant::now();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(started.elapsed() < Duration::from_secs(9));
        assert!(!answer.starts_with(b"HTTP"));
    }
    let mut stream = connect(&server);
    stream.write_all(client::head("GET", "/ready", &[]).as_bytes()).unwrap();
    assert_eq!(client::read(&mut BufReader::new(stream), "GET").status, 200);
}
