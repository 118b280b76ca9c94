use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn served(name: &str, source: Source) -> Served {
    Served { name: name.to_owned(), model: served_name(&source), source, laid: None }
}

#[test]
fn the_last_part_of_a_name_is_enough_where_it_is_the_only_one() {
    let models = ["a/one-GGUF:Q4_0", "a/two", "b/two"];
    let models = models.map(|name| Served { model: name.to_owned(), ..served(name, Source::DEMO) });
    let names = Names::Fixed(models.to_vec());
    let meant = |name: &str| names.find(name).unwrap().map(|found| found.model);
    for name in ["a/one-GGUF:Q4_0", "one-GGUF:Q4_0", "one-gguf:q4_0", "One-GGUF"] {
        assert_eq!(meant(name).as_deref(), Some("a/one-GGUF:Q4_0"), "{name}");
    }
    assert_eq!(meant("b/two").as_deref(), Some("b/two"));
    for name in ["two", "one", "a/one-GGUF", "", "Q4_0", "/"] {
        assert_eq!(meant(name), None, "{name}");
    }
}

#[test]
fn every_name_stands_for_one_model() {
    let alias = |name: &str, model: &str| [(name.to_owned(), model.to_owned())];
    let demo = || vec![served("demo", Source::DEMO)];
    let open = |model: &str| match model {
        "y" => Err(anyhow!("no model y")),
        path => Ok(served("file", Source::Path(path.into()))),
    };
    let names = Names::fixed(demo(), &alias("gpt-4o", "demo"), open).unwrap();
    let listed: Vec<_> =
        names.list().into_iter().map(|listed| (listed.name, listed.model)).collect();
    let expected = [("demo", "demo"), ("gpt-4o", "demo")];
    assert_eq!(listed, expected.map(|(name, model)| (name.to_owned(), model.to_owned())));
    // Where only a preset is served, the name of its model means nothing.
    let preset = Served { laid: Some(Arc::default()), ..served("pirate", Source::DEMO) };
    for (models, short) in
        [(vec![preset.clone()], "pirate"), (vec![preset, demo().remove(0)], "demo")]
    {
        let names = Names::Fixed(models);
        let listed = names.list();
        assert_eq!(listed[0].short, short);
        assert!(names.find(&listed[0].short).unwrap().is_some_and(|found| found.model == "demo"));
    }
    for (models, aliases, mark) in [
        (demo(), alias("x", "y"), "no model y"),
        (demo(), alias("demo", "demo"), "the name demo"),
        (
            vec![served("demo", Source::DEMO), served("demo", Source::DEMO)],
            alias("x", "demo"),
            "the name demo",
        ),
        (
            vec![
                served("m", Source::Path("a/m.gguf".into())),
                served("n", Source::Path("b/m.gguf".into())),
            ],
            alias("x", "m"),
            "the name n",
        ),
    ] {
        let error = format!("{:#}", Names::fixed(models, &aliases, open).err().unwrap());
        assert!(error.contains(mark), "{error}");
    }
    // An alias may bring a model, and answer to every name that nothing else has.
    for (model, expected) in [("", "demo"), ("demo", "demo"), ("a/m.gguf", "m")] {
        let names = Names::fixed(demo(), &alias("*", model), open).unwrap();
        let meant = |name: &str| names.find(name).unwrap().unwrap().model;
        assert_eq!([meant("demo"), meant("claude-sonnet-5")], ["demo", expected]);
        assert!(names.sources().of(expected).is_some());
        let listed: Vec<_> = names.list().into_iter().map(|listed| listed.name).collect();
        assert_eq!(listed, ["demo"], "it is not listed");
    }
    let folder = tempfile::tempdir().unwrap();
    let library = ModelLibrary::default();
    let hub = || Hub::new(trine_hub::HubConfig::new(folder.path())).unwrap();
    let aliases = [alias("mine", "a/m.gguf"), alias("*", "")].concat();
    let names = Names::store((&library, hub()), None, &aliases, open).unwrap();
    let meant = |name: &str| names.find(name).unwrap().unwrap().model;
    assert_eq!([meant("mine"), meant("mine:latest"), meant("gpt-4o")], ["m", "m", "demo"]);
    assert_eq!(names.sources().of("m").map(|source| place(&source)), Some("a/m.gguf".into()));
    let listed: Vec<_> = names.list().into_iter().map(|listed| listed.name).collect();
    assert_eq!(listed, ["demo", "mine"]);
    // The name of another family's model is one that is not here, as a preset that was removed.
    let names = Names::store((&library, hub()), None, &[], open).unwrap();
    assert!(["sailor", "gpt-4o", "nobody"].iter().all(|name| names.find(name).unwrap().is_none()));
    let taken = Names::store((&library, hub()), None, &alias("x", "a/demo.gguf"), open);
    assert!(taken.err().unwrap().to_string().contains("the name demo"));
}

#[test]
fn a_stamp_changes_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let source = Source::Path(path.clone());
    let mut stamps = vec![stamp(&source)];
    std::fs::write(&path, "one").unwrap();
    stamps.push(stamp(&source));
    assert_eq!(stamps[1], stamp(&source));
    std::fs::write(&path, "longer").unwrap();
    stamps.push(stamp(&source));
    let other = folder.path().join("other");
    std::fs::write(&other, "longer").unwrap();
    std::fs::rename(&other, &path).unwrap();
    stamps.push(stamp(&source));
    assert!(stamps.windows(2).all(|two| two[0] != two[1]), "{stamps:?}");
    // For a model in several files, a change of any of them counts.
    let [first, second] =
        ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| folder.path().join(name));
    std::fs::write(&first, "a").unwrap();
    std::fs::write(&second, "b").unwrap();
    let split = Source::Path(first);
    let before = stamp(&split);
    std::fs::write(&second, "bb").unwrap();
    assert_ne!(stamp(&split), before);
}

/// Counts how often the folder of a repository is read.
struct Reads(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Reads {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().target() == "trine_hub::shelf" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_list_reads_each_folder_once_whatever_is_in_it() {
    use tracing_subscriber::layer::SubscriberExt;

    let folder = tempfile::tempdir().unwrap();
    let [store, studio] = ["store", "studio"].map(|name| folder.path().join(name));
    let repositories = [store.join("a/one"), studio.join("b/two")];
    for repository in &repositories {
        std::fs::create_dir_all(repository).unwrap();
        for index in 0..30 {
            std::fs::write(repository.join(format!("m{index}-Q8_0.gguf")), "x").unwrap();
        }
    }
    let mut config = trine_hub::HubConfig::new(&store);
    config.neighbours = vec![(trine_hub::Origin::LmStudio, studio)];
    let hub = Hub::new(config).unwrap();
    for index in 0..10 {
        let name = PresetName::parse(&format!("p{index}")).unwrap();
        let base = format!("b/two/m{index}-Q8_0.gguf");
        hub.save_preset(&Preset::new(&name, base)).unwrap();
    }
    let aliases = [("mine".to_owned(), "a/one/m3-Q8_0.gguf".to_owned())];
    let open = |model: &str| Err(anyhow!("no model {model}"));
    let names = Names::store((&ModelLibrary::default(), hub), None, &aliases, open).unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let subscriber = tracing_subscriber::registry().with(Reads(reads.clone()));
    tracing::subscriber::with_default(subscriber, || {
        assert_eq!(names.list().len(), 1 + 60 + 10 + aliases.len());
        assert_eq!(reads.swap(0, Ordering::Relaxed), repositories.len());
        let (listed, sources) = (names.list(), names.sources());
        assert!(listed.iter().all(|listed| sources.of(&listed.model).is_some()));
        assert_eq!(reads.swap(0, Ordering::Relaxed), 2 * repositories.len());
        let catalog = names.library().unwrap().catalog(false).unwrap();
        assert!(catalog.models.len() > 10);
    });
    // A model of the catalogue that is not here may be one that a bounded listing left out.
    assert!(reads.load(Ordering::Relaxed) <= repositories.len() + catalog::models().len());
}
