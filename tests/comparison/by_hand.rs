//! Small comparisons whose numbers can be worked out.

use arrow::util::pretty::pretty_format_batches;
use rollstream::measure::compare::{ComparisonOptions, MetricComparison, OverlapCounts};

use super::run::{Asked, asked, compare, joined, request};

/// The usual options, for all metrics.
fn everything() -> ComparisonOptions {
    ComparisonOptions {
        all: true,
        ..ComparisonOptions::default()
    }
}

fn reward(rewards: &[f64]) -> Vec<String> {
    let answer = |reward| format!(r#"{{"reward":{reward}}}"#);
    rewards.iter().map(answer).collect()
}

fn scored(question: &str, rewards: &[f64]) -> Asked {
    Asked {
        answers: reward(rewards),
        ..asked(question, &[])
    }
}

#[track_caller]
fn near(value: Option<f64>, expected: f64) {
    let value = value.unwrap();
    assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
}

fn of<'a>(rows: &'a [MetricComparison], metric: &str) -> &'a MetricComparison {
    rows.iter().find(|row| row.metric == metric).unwrap()
}

#[tokio::test]
async fn tasks_are_joined_wherever_they_stand() {
    let base = [
        scored("a", &[0.25, 0.75]),
        scored("b", &[0.5]),
        scored("c", &[1.0, 0.0, 0.5, 0.5]),
        scored("only base", &[9.0]),
    ];
    let sampled = |question: &str| {
        format!(
            r#"{{"responses_create_params":{{"temperature":0.1,"input":"{question}"}},"_ng_task_index":5}}"#
        )
    };
    let mut candidate = [
        scored("only candidate", &[-9.0]),
        scored("c", &[1.0, 1.0]),
        scored("another", &[-9.0]),
        scored("b", &[0.5]),
        scored("a", &[0.75, 0.75, 0.75]),
    ];
    candidate[1].request = sampled("c");
    candidate[4].request = sampled("a");
    let options = everything();
    let compared = joined(&base, &candidate, &options).await;
    assert_eq!(
        compared.overlaps(),
        [OverlapCounts {
            in_common: 3,
            only_in_base: 1,
            only_in_candidate: 2,
            ..OverlapCounts::default()
        }]
    );
    let rows = compared.comparisons().await.unwrap();
    let [row] = rows.as_slice() else {
        panic!("{rows:#?}");
    };
    // Differences: 0.25, 0 and 0.5.
    assert_eq!(
        (row.num_tasks, row.without_base, row.without_candidate),
        (3, 0, 0)
    );
    near(Some(row.base_mean), 0.5);
    near(Some(row.candidate_mean), 0.75);
    near(Some(row.difference), 0.25);
    near(row.stderr, 0.25 / 3f64.sqrt());
    near(
        row.mde,
        (1.959963984540054 + 0.8416212335729143) * 0.25 / 3f64.sqrt(),
    );
    // Of the four ways to give signs to two differences two are as far out.
    assert_eq!((row.test.as_str(), row.p_value), ("permutation", Some(0.5)));
    assert_eq!((row.is_binary, row.gained, row.lost), (false, 2, 0));
    // All samples lie between the least and the largest difference, and 1 in 27 is the largest one alone.
    assert_eq!((row.ci_low, row.ci_high), (Some(0.0), Some(0.5)));

    let mut turned = base.clone();
    turned.reverse();
    assert_eq!(compare(&turned, &candidate, &options).await, rows);
}

/// As many tasks as `counts` sums up to, each with a reward in the base and one in the candidate.
fn pairs(counts: &[(f64, f64, usize)]) -> (Vec<Asked>, Vec<Asked>) {
    let of_kind = |&(base, candidate, count): &(f64, f64, usize)| {
        std::iter::repeat_n((base, candidate), count)
    };
    let rewards = counts.iter().flat_map(of_kind).enumerate();
    rewards
        .map(|(n, (base, candidate))| {
            let question = n.to_string();
            (scored(&question, &[base]), scored(&question, &[candidate]))
        })
        .unzip()
}

#[tokio::test]
async fn scores_of_0_and_1_are_tested_by_mcnemar() {
    let options = everything();
    let (base, candidate) = pairs(&[(0.0, 1.0, 9), (1.0, 0.0, 2), (1.0, 1.0, 20), (0.0, 0.0, 9)]);
    let rows = compare(&base, &candidate, &options).await;
    // Twice the probability of at most 2 heads in 11 throws.
    assert_eq!(rows[0].test, "mcnemar_exact");
    near(rows[0].p_value, 2.0 * (1.0 + 11.0 + 55.0) / 2048.0);
    assert_eq!(
        (rows[0].gained, rows[0].lost, rows[0].is_binary),
        (9, 2, true)
    );
    near(Some(rows[0].difference), 7.0 / 40.0);

    let (base, candidate) = pairs(&[(0.0, 1.0, 20), (1.0, 0.0, 5), (1.0, 1.0, 5)]);
    let rows = compare(&base, &candidate, &options).await;
    // 15^2 / 25 = 9 = 3^2, which a normal variable is beyond with 0.0027.
    assert_eq!(rows[0].test, "mcnemar");
    near(rows[0].p_value, 0.002699796063260207);
    assert!(rows[0].significant);

    let (base, candidate) = pairs(&[(1.0, 1.0, 5), (0.0, 0.0, 5)]);
    let rows = compare(&base, &candidate, &options).await;
    assert_eq!(
        (rows[0].test.as_str(), rows[0].p_value),
        ("mcnemar_exact", Some(1.0))
    );
    assert!(!rows[0].significant);
    assert_eq!((rows[0].ci_low, rows[0].ci_high), (Some(0.0), Some(0.0)));
}

#[tokio::test]
async fn repeats_are_tested_as_clusters_and_flip_at_a_half() {
    let options = everything();
    let tasks = |rewards: &dyn Fn(usize) -> Vec<f64>| -> Vec<Asked> {
        (0..40)
            .map(|n| scored(&n.to_string(), &rewards(n)))
            .collect()
    };
    let base = tasks(&|n| vec![if n < 10 { 1.0 } else { 0.0 }, 0.0, 0.0]);
    let candidate = tasks(&|n| vec![1.0, if n < 30 { 1.0 } else { 0.0 }]);
    let rows = compare(&base, &candidate, &options).await;
    // Differences: ten of 2/3, twenty of 1, ten of 1/2.
    let (sum, squares) = (20.0 / 3.0 + 25.0, 40.0 / 9.0 + 22.5);
    assert_eq!(rows[0].test, "mcnemar_clustered");
    near(Some(rows[0].difference), sum / 40.0);
    let z: f64 = sum * sum / squares;
    assert!(rows[0].p_value.unwrap() < 1e-6 && z > 30.0, "{rows:#?}");
    assert_eq!((rows[0].gained, rows[0].lost), (40, 0));

    // With fewer tasks that differ, signs are flipped.
    let rows = compare(&base[..4], &candidate[..4], &options).await;
    assert_eq!(
        (rows[0].test.as_str(), rows[0].p_value),
        ("permutation", Some(0.125))
    );
    assert!(rows[0].is_binary);

    // One rollout a task on each side: the form for clusters is McNemar's test.
    let (mut base, mut candidate) = pairs(&[(0.0, 1.0, 20), (1.0, 0.0, 5)]);
    let single = compare(&base, &candidate, &options).await;
    for task in base.iter_mut().chain(&mut candidate) {
        task.answers.push(task.answers[0].clone());
    }
    let clustered = compare(&base, &candidate, &options).await;
    assert_eq!(clustered[0].test, "mcnemar_clustered");
    near(clustered[0].p_value, single[0].p_value.unwrap());
}

#[tokio::test]
async fn p_values_are_corrected_by_holm_over_all_rows() {
    // Differences of 1 in the first so many tasks that flipping their signs has p = 2^(1 - k).
    let tasks = |is_candidate: bool| -> Vec<Asked> {
        let changed = [("reward", 0), ("a", 6), ("b", 8), ("c", 7), ("d", 2)];
        (0..12)
            .map(|n| {
                let score = |k: i32| f64::from(u8::from(is_candidate && n < k)) + 0.5;
                let fields: Vec<String> = changed
                    .iter()
                    .map(|(name, k)| format!("\"{name}\":{}", score(*k)))
                    .collect();
                asked(&n.to_string(), &[&format!("{{{}}}", fields.join(","))])
            })
            .collect()
    };
    let options = everything();
    let (base, candidate) = (tasks(false), tasks(true));
    let rows = compare(&base, &candidate, &options).await;
    let names: Vec<&str> = rows.iter().map(|row| row.metric.as_str()).collect();
    assert_eq!(names, ["reward", "a", "b", "c", "d"]);
    let p = |metric: &str| of(&rows, metric).p_value.unwrap();
    assert_eq!(
        ["reward", "a", "b", "c", "d"].map(p),
        [1.0, 1.0 / 32.0, 1.0 / 128.0, 1.0 / 64.0, 0.5]
    );
    // 5/128, then 4/64, then 3/32; 2 times 0.5 is 1, and none is smaller than the one before.
    let holm = |metric: &str| of(&rows, metric).p_holm.unwrap();
    assert_eq!(
        ["b", "c", "a", "d", "reward"].map(holm),
        [5.0 / 128.0, 0.0625, 0.09375, 1.0, 1.0]
    );
    let significant: Vec<&str> = rows
        .iter()
        .filter(|row| row.significant)
        .map(|row| row.metric.as_str())
        .collect();
    assert_eq!(significant, ["b"]);

    let chosen = ComparisonOptions {
        metrics: vec!["c".into(), "a".into()],
        all: false,
        ..options
    };
    let rows = compare(&base, &candidate, &chosen).await;
    let holm: Vec<f64> = rows.iter().map(|row| row.p_holm.unwrap()).collect();
    assert_eq!(holm, [1.0 / 32.0, 1.0 / 32.0]);
}

#[tokio::test]
async fn the_settings_reach_the_numbers() {
    let tasks = |shift: f64| -> Vec<Asked> {
        (0..30)
            .map(|n| scored(&n.to_string(), &[f64::from(n % 7) * shift]))
            .collect()
    };
    let (base, candidate) = (tasks(0.1), tasks(0.15));
    let default = everything();
    let usual = compare(&base, &candidate, &default).await;
    assert_eq!(compare(&base, &candidate, &default).await, usual);
    let with =
        async |options: ComparisonOptions| compare(&base, &candidate, &options).await.remove(0);
    let seeded = with(ComparisonOptions {
        seed: 1,
        ..default.clone()
    })
    .await;
    assert_ne!(
        (seeded.ci_low, seeded.ci_high),
        (usual[0].ci_low, usual[0].ci_high)
    );
    assert_eq!(seeded.difference, usual[0].difference);
    let narrow = with(ComparisonOptions {
        confidence: 0.5,
        ..default.clone()
    })
    .await;
    assert!(narrow.ci_low > usual[0].ci_low && narrow.ci_high < usual[0].ci_high);
    let strong = with(ComparisonOptions {
        power: 0.99,
        ..default.clone()
    })
    .await;
    near(
        strong.mde,
        (1.959963984540054 + 2.3263478740408408) * usual[0].stderr.unwrap(),
    );
    let few = with(ComparisonOptions {
        permutations: 99,
        ..default
    })
    .await;
    assert_eq!(few.p_value, Some(0.01));
}

#[tokio::test]
async fn tasks_that_are_the_same_are_taken_together() {
    let base = [
        scored("a", &[1.0, 0.0]),
        scored("b", &[0.0]),
        scored("a", &[1.0]),
    ];
    let candidate = [scored("a", &[1.0]), scored("b", &[0.0])];
    let compared = joined(&base, &candidate, &everything()).await;
    assert_eq!(
        compared.overlaps(),
        [OverlapCounts {
            in_common: 2,
            base_pooled: 1,
            ..OverlapCounts::default()
        }]
    );
    let rows = compared.comparisons().await.unwrap();
    near(Some(rows[0].base_mean), (2.0 / 3.0) / 2.0);
    assert_eq!(rows[0].num_tasks, 2);
}

#[tokio::test]
async fn what_one_side_lacks_is_counted_and_not_compared() {
    let base = [
        asked("a", &[r#"{"reward":1,"x":1}"#]),
        asked("b", &[r#"{"reward":0,"old":1}"#]),
        asked("c", &[]),
    ];
    let candidate = [
        asked("a", &[r#"{"reward":1,"x":3}"#, r#"{"reward":0}"#]),
        asked("b", &[]),
        asked("c", &[r#"{"reward":0,"x":1,"new":1}"#]),
    ];
    let compared = joined(&base, &candidate, &everything()).await;
    let metrics = compared.metrics().iter();
    let counts: Vec<(&str, u64, u64, u64)> = metrics
        .map(|m| {
            (
                m.metric.as_str(),
                m.num_tasks,
                m.base_tasks,
                m.candidate_tasks,
            )
        })
        .collect();
    assert_eq!(
        counts,
        [
            ("reward", 1, 2, 2),
            ("new", 0, 0, 1),
            ("old", 0, 1, 0),
            ("x", 1, 1, 2)
        ]
    );
    let rows = compared.comparisons().await.unwrap();
    assert_eq!(rows.len(), 2);
    let reward = of(&rows, "reward");
    assert_eq!(
        (
            reward.num_tasks,
            reward.without_base,
            reward.without_candidate
        ),
        (1, 1, 1)
    );
    assert_eq!((reward.stderr, reward.mde), (None, None));
    let x = of(&rows, "x");
    assert_eq!((x.without_base, x.without_candidate), (2, 1));
    near(Some(x.difference), 2.0);
}

#[tokio::test]
async fn a_field_can_tell_tasks_apart_in_place_of_what_they_ask() {
    let with_id = |question: &str, id: &str, reward: f64| Asked {
        request: request(question).replace("}}", &format!("}},\"source\":{{\"id\":{id}}}}}")),
        ..scored(question, &[reward])
    };
    let base = [
        with_id("a", "1", 0.0),
        with_id("b", "2", 0.0),
        scored("c", &[0.0]),
    ];
    let candidate = [with_id("B", "\"2\"", 1.0), with_id("A", "1", 0.0)];
    let options = ComparisonOptions {
        task_key: Some("source.id".into()),
        ..everything()
    };
    let compared = joined(&base, &candidate, &options).await;
    assert_eq!(
        compared.overlaps(),
        [OverlapCounts {
            in_common: 2,
            base_without_key: 1,
            ..OverlapCounts::default()
        }]
    );
    let flips = compared.flips().await.unwrap().collect().await.unwrap();
    insta::assert_snapshot!(pretty_format_batches(&flips).unwrap(), @r"
    +--------+-----------+-------+----------+-----------------+----------------------+-----------+----------------+------------+-----------------+------------+--------+
    | metric | candidate | agent | task_key | base_task_index | candidate_task_index | base_mean | candidate_mean | base_count | candidate_count | difference | flip   |
    +--------+-----------+-------+----------+-----------------+----------------------+-----------+----------------+------------+-----------------+------------+--------+
    | reward | candidate | sim   | 2        | 1               | 0                    | 0.0       | 1.0            | 1          | 1               | 1.0        | gained |
    +--------+-----------+-------+----------+-----------------+----------------------+-----------+----------------+------------+-----------------+------------+--------+
    ");
}

#[tokio::test]
async fn scores_beyond_all_sums_are_no_error() {
    let (base, candidate) = pairs(&[(-1.7e308, 1.7e308, 3), (0.0, 1.0, 1)]);
    let rows = compare(&base, &candidate, &everything()).await;
    assert_eq!((rows[0].num_tasks, rows[0].gained), (4, 4));
    assert!(
        rows[0].base_mean.is_nan() && !rows[0].significant,
        "{rows:?}"
    );
}
