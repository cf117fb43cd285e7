//! The files of a run: what is in them, and how they are written.

use std::collections::BTreeSet;
use std::fs::File;

use arrow::datatypes::{DataType, Field, SchemaRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use rollstream::config::{Concurrency, Settings};
use rollstream::schema;
use rollstream::sim::{AgentConfig, Sim, SimConfig};

use super::landed;
use super::workspace::{Workspace, quick, sweep, tasks};

/// A run of 200 rollouts in many small parts.
async fn run_in_parts(place: &Workspace) -> Vec<String> {
    let sim = Sim::start(SimConfig {
        body_size: 20_000,
        ..quick(&[("sim", AgentConfig::default())])
    })
    .await
    .unwrap();
    let settings = Settings {
        concurrency: Concurrency::Fixed(2),
        part_size: "20KB".parse().unwrap(),
        ..place.settings(&tasks(100, &["sim"]), 2, &sim)
    };
    sweep(settings).await.written
}

fn metadata(path: &std::path::Path) -> ParquetMetaData {
    SerializedFileReader::new(File::open(path).unwrap())
        .unwrap()
        .metadata()
        .clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_lands_in_parts_of_the_size_asked_for_and_its_journal_is_empty() {
    let place = Workspace::new();
    let written = run_in_parts(&place).await;
    let (rollouts, attempts) = (
        landed::parts(&place.run(), "rollouts"),
        landed::parts(&place.run(), "attempts"),
    );
    assert!(rollouts.len() > 2, "{rollouts:?}");
    assert_eq!(rollouts.len(), attempts.len());
    assert_eq!(landed::done(&place.run()), landed::all(100, 2));
    assert_eq!(landed::attempts(&place.run()).len(), 200);
    assert!(landed::segments(&place.run().join("journal")).is_empty());

    let published: BTreeSet<_> = written.iter().map(std::path::PathBuf::from).collect();
    let there: BTreeSet<_> = rollouts
        .into_iter()
        .chain(attempts)
        .chain([place.run().join("run.json")])
        .collect();
    assert_eq!(published, there);
}

/// The type that a column has for a reader who knows nothing of Arrow.
fn plain(field: &Field) -> Field {
    let of = |to: DataType| Field::new(field.name(), to, field.is_nullable());
    match field.data_type() {
        DataType::Utf8View => of(DataType::Utf8),
        _ => of(field.data_type().clone()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_have_the_declared_schema_in_types_that_every_reader_knows() {
    let place = Workspace::new();
    run_in_parts(&place).await;
    let tables: [(&str, SchemaRef); 3] = [
        ("tasks", schema::tasks()),
        ("rollouts", schema::rollouts()),
        ("attempts", schema::attempts()),
    ];
    for (table, declared) in tables {
        let declared: Vec<Field> = declared.fields().iter().map(|field| plain(field)).collect();
        for path in landed::parts(&place.run(), table) {
            let reader =
                ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
            let found: Vec<Field> = reader
                .schema()
                .fields()
                .iter()
                .map(|field| field.as_ref().clone().with_metadata(Default::default()))
                .collect();
            assert_eq!(found, declared, "{}", path.display());
            let metadata = metadata(&path);
            let keys = metadata
                .file_metadata()
                .key_value_metadata()
                .cloned()
                .unwrap_or_default();
            assert!(
                keys.iter().all(|pair| pair.key != "ARROW:schema"),
                "{}",
                path.display()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_are_compressed_and_long_texts_carry_neither_dictionary_nor_statistics() {
    let place = Workspace::new();
    run_in_parts(&place).await;
    for table in ["tasks", "rollouts", "attempts"] {
        for path in landed::parts(&place.run(), table) {
            for group in metadata(&path).row_groups() {
                for column in group.columns() {
                    let name = column.column_path().string();
                    assert!(
                        matches!(column.compression(), Compression::ZSTD(_)),
                        "{table}.{name}"
                    );
                    if [schema::RESULT, schema::REQUEST].contains(&&*name) {
                        let encodings: Vec<Encoding> = column.encodings().collect();
                        assert!(column.dictionary_page_offset().is_none(), "{table}.{name}");
                        assert!(
                            !encodings.contains(&Encoding::RLE_DICTIONARY),
                            "{table}.{name}"
                        );
                        assert!(column.statistics().is_none(), "{table}.{name}");
                    }
                    if name == schema::TASK_INDEX {
                        assert!(column.statistics().is_some(), "{table}.{name}");
                    }
                }
            }
        }
    }
}
