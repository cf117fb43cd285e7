//! Functions of a task's list of scores.

use crate::query::{list, session, try_rows};

fn some(values: &[f64]) -> Option<Vec<Option<f64>>> {
    Some(values.iter().copied().map(Some).collect())
}

#[tokio::test]
async fn pass_at_k_of_binary_and_other_scores() {
    let ctx = session(1);
    for (call, expected) in [
        (
            "pass_at_each_k([1.0, 0.0, 0.0, 1.0])",
            some(&[0.5, 1.0 - 1.0 / 6.0, 1.0, 1.0]),
        ),
        (
            "pass_at_each_k([0, 1, 0])",
            some(&[1.0 - 2.0 / 3.0, 1.0 - 1.0 / 3.0, 1.0]),
        ),
        ("pass_at_each_k([true, false])", some(&[0.5, 1.0])),
        ("pass_at_each_k([null, 1.0, null, 0.0])", some(&[0.5, 1.0])),
        (
            "pass_at_each_k([0.25, null, 0.5, 0.125])",
            some(&[0.25, 0.5, 0.5]),
        ),
        ("pass_at_each_k([-2, -3])", some(&[-2.0, -2.0])),
        ("pass_at_each_k([null])", some(&[])),
        ("pass_at_each_k(make_array())", some(&[])),
        ("pass_at_each_k(null)", None),
        (
            "pass_at_each_k(arrow_cast([1, 0], 'LargeList(Int64)'))",
            some(&[0.5, 1.0]),
        ),
        (
            "pass_at_each_k(arrow_cast([1, 0], 'FixedSizeList(2, Int64)'))",
            some(&[0.5, 1.0]),
        ),
        (
            "pass_hat_each_k([1, 1, 0, 1])",
            some(&[0.75, 0.5, 0.25, 0.0]),
        ),
        ("pass_hat_each_k([1, 0.5])", None),
        (
            "best_of_each_k([1, 0, 0, 1])",
            some(&[0.5, 1.0 - 1.0 / 6.0, 1.0, 1.0]),
        ),
        (
            "best_of_each_k([3, 1, 2])",
            some(&[2.0, 2.0 / 3.0 * 3.0 + 1.0 / 3.0 * 2.0, 3.0]),
        ),
        ("best_of_each_k([-1, null, -3])", some(&[-2.0, -1.0])),
    ] {
        assert_eq!(
            list(&ctx, &format!("SELECT {call}")).await,
            expected,
            "{call}"
        );
    }
}

#[tokio::test]
async fn lists_of_a_batch_are_each_their_own() {
    let ctx = session(1);
    let sql = "SELECT pass_at_each_k(v) AS a, pass_hat_each_k(v) AS b, best_of_each_k(v) AS c FROM
        (VALUES ([1.0, 0.0]), (null), ([0.0, 1.0]), ([0.5, 0.25]), ([1.0]), ([1.0, 0.0])) AS t(v)";
    let rows = try_rows(&ctx, sql).await.unwrap();
    let text = arrow::util::pretty::pretty_format_batches(&[rows]).unwrap();
    let expected = "\
+-------------+------------+---------------+
| a           | b          | c             |
+-------------+------------+---------------+
| [0.5, 1.0]  | [0.5, 0.0] | [0.5, 1.0]    |
|             |            |               |
| [0.5, 1.0]  | [0.5, 0.0] | [0.5, 1.0]    |
| [0.5, 0.5]  |            | [0.375, 0.5]  |
| [1.0]       | [1.0]      | [1.0]         |
| [0.5, 1.0]  | [0.5, 0.0] | [0.5, 1.0]    |
+-------------+------------+---------------+";
    let squeezed = |text: &str| text.replace([' ', '-'], "");
    assert_eq!(squeezed(&text.to_string()), squeezed(expected));
}

#[tokio::test]
async fn means_and_deviations_of_the_first_k() {
    let ctx = session(1);
    let values = "[null, 0.1, 0.2, null, 0.3]";
    let means = list(&ctx, &format!("SELECT mean_of_each_first_k({values}, 7)"))
        .await
        .unwrap();
    let mean = Some(0.15000000000000002);
    assert_eq!(means[..4], [None, Some(0.1), mean, mean]);
    assert_eq!(means[4], means[6]);
    // Plain summation gives 0.6000000000000001.
    assert_eq!(means[4], Some(0.6 / 3.0));
    let deviations = list(&ctx, &format!("SELECT std_of_each_first_k({values}, 6)"))
        .await
        .unwrap();
    assert_eq!(deviations[..2], [None, None]);
    assert!((deviations[2].unwrap() - 0.005f64.sqrt()).abs() < 1e-16);
    assert!((deviations[4].unwrap() - 0.1).abs() < 1e-16);
    assert_eq!(deviations[5], deviations[4]);
    let constant = "SELECT std_of_each_first_k([0.25, 0.25, 0.25, 0.25], 4)";
    assert_eq!(list(&ctx, constant).await.unwrap()[1..], [Some(0.0); 3]);
    // As with Python's sum(): a third of three tenths is not a tenth.
    let tenths = "SELECT std_of_each_first_k([0.1, 0.1, 0.1], 3)";
    assert!(list(&ctx, tenths).await.unwrap()[2].unwrap() < 1e-16);
    assert_eq!(
        list(&ctx, "SELECT mean_of_each_first_k(make_array(), 2)").await,
        Some(vec![None, None])
    );
    assert_eq!(
        list(&ctx, "SELECT mean_of_each_first_k([1.0], null)").await,
        None
    );
    assert_eq!(
        list(&ctx, "SELECT mean_of_each_first_k([1.0], 0)").await,
        some(&[])
    );
    let error = try_rows(&ctx, "SELECT std_of_each_first_k([1.0], -1)")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("max_k = -1"), "{error}");
}

#[tokio::test]
async fn majority_counts_pairs_of_answer_and_score() {
    let ctx = session(1);
    for (call, expected) in [
        // One answer with two scores is two candidates.
        (
            "([1, 0, 0, 0], ['a', 'b', 'b', 'b'], 4)",
            &[1.0, 0.5, 0.0, 0.0][..],
        ),
        ("([1, 0, 1], ['a', 'a', 'a'], 3)", &[1.0, 0.5, 1.0]),
        (
            "([0.2, 0.4, 0.9, 0.9], ['a', 'b', 'c', 'c'], 4)",
            &[0.2, (0.2 + 0.4) / 2.0, 0.5, 0.9],
        ),
        // Neither a rollout without an answer nor one without the score has a vote.
        (
            "([1, null, 0, 0], [null, 'a', 'b', null], 5)",
            &[0.0, 0.0, 0.0, 0.0, 0.0],
        ),
        ("([1, null, 0], ['a', 'b', null], 4)", &[1.0, 1.0, 1.0, 1.0]),
        ("([1], ['', 'a'], 2)", &[1.0, 1.0]),
        ("(make_array(), make_array(), 2)", &[0.0, 0.0]),
        ("([0.0, -0.0, 1.0], ['a', 'a', 'b'], 3)", &[0.0, 0.0, 0.0]),
        (
            "([0.5, 1], arrow_cast(['x', 'y'], 'List(Utf8View)'), 2)",
            &[0.5, 0.75],
        ),
    ] {
        let sql = format!("SELECT majority_at_each_k{call}");
        assert_eq!(list(&ctx, &sql).await, some(expected), "{call}");
    }
    assert_eq!(
        list(&ctx, "SELECT majority_at_each_k([1.0], null, 1)").await,
        None
    );
}

#[tokio::test]
async fn answers_are_counted_by_value() {
    let ctx = session(1);
    let sql = "SELECT majority_at_each_k(array_agg(score ORDER BY i), array_agg(answer_text(answer) ORDER BY i), 4)
        FROM (VALUES (1, 0, '2'), (2, 1, '1'), (3, 1, '1.0'), (4, 0, '\"1\"')) AS t(i, score, answer)";
    assert_eq!(list(&ctx, sql).await, some(&[0.0, 0.5, 1.0, 1.0]));
    let error = try_rows(&ctx, "SELECT answer_text('[1]')")
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("is a list or an object"),
        "{error}"
    );
}
