//! The one physical plan of a sweep, as `rollstream plan` shows it.

use std::collections::BTreeMap;

use rollstream::Sweep;
use rollstream::config::{AgentSettings, Concurrency, Settings};
use rollstream::sim::{AgentConfig, Sim};

use super::workspace::{Workspace, quick, sweep, tasks};

/// What differs from one machine and moment to another.
const FILTERS: [(&str, &str); 3] = [
    (r"(output=)[^,]*/run/?", "${1}[RUN]"),
    (
        r"[^\s\[,]*/?tasks/tasks\.parquet(:[0-9]+\.\.[0-9]+)?",
        "TASKS",
    ),
    (r"http://127\.0\.0\.1:[0-9]+", "[AGENT]"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_is_one_plan_from_source_to_sink() {
    let place = Workspace::new();
    let url = |port: u16| AgentSettings {
        url: Some(format!("http://127.0.0.1:{port}").parse().unwrap()),
        ..AgentSettings::default()
    };
    let settings = Settings {
        input: vec![place.write("tasks.jsonl", tasks(7, &["alpha", "beta"]))],
        agents: BTreeMap::from([("alpha".to_owned(), url(1)), ("beta".to_owned(), url(2))]),
        num_repeats: "alpha=3,beta=1".parse().unwrap(),
        concurrency: Concurrency::Fixed(64),
        ..place.bare_settings(1)
    };
    let plan = Sweep::prepare(settings)
        .await
        .unwrap()
        .plan()
        .await
        .unwrap();
    insta::with_settings!({filters => FILTERS.to_vec()}, {
        insta::assert_snapshot!(plan.physical, @r"
        LandExec: output=[RUN], part_size=134217728, partitions=1
          RunExec: concurrency=64, partitions=1
            ProjectionExec: expr=[task_index@0 as task_index, __unnest_placeholder(range(tasks.first_rollout_index,tasks.first_rollout_index + tasks.num_repeats),depth=1)@1 as rollout_index, agent_name@2 as agent_name, request@3 as request]
              UnnestExec
                DataSourceExec: file_groups={1 group: [[TASKS]]}, projection=[task_index, range(first_rollout_index@2, first_rollout_index@2 + num_repeats@3) as __unnest_placeholder(range(tasks.first_rollout_index,tasks.first_rollout_index + tasks.num_repeats)), agent_name, request], file_type=parquet
        ");
    });
    let counts = plan.agents.iter().map(|agent| {
        (
            &*agent.agent_name,
            agent.num_tasks,
            agent.num_rollouts,
            agent.num_done,
        )
    });
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [("alpha", 4, 12, 0), ("beta", 3, 3, 0)]
    );
    assert_eq!(plan.num_pending(), 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_dealt_out_to_partitions_before_they_become_rollouts() {
    let place = Workspace::new();
    let url = AgentSettings {
        url: Some("http://127.0.0.1:1".parse().unwrap()),
        ..AgentSettings::default()
    };
    let settings = Settings {
        input: vec![place.write("tasks.jsonl", tasks(7, &["alpha"]))],
        agents: BTreeMap::from([("alpha".to_owned(), url)]),
        partitions: Some(3),
        ..place.bare_settings(2)
    };
    let sweep = Sweep::prepare(settings).await.unwrap();
    let plan = sweep.plan().await.unwrap();
    assert_eq!(plan.partitions, 3);
    insta::with_settings!({filters => FILTERS.to_vec()}, {
        insta::assert_snapshot!(plan.physical, @r"
        LandExec: output=[RUN], part_size=134217728, partitions=3
          RunExec: concurrency=16, partitions=3
            ProjectionExec: expr=[task_index@0 as task_index, __unnest_placeholder(range(tasks.first_rollout_index,tasks.first_rollout_index + tasks.num_repeats),depth=1)@1 as rollout_index, agent_name@2 as agent_name, request@3 as request]
              UnnestExec
                ProjectionExec: expr=[task_index@0 as task_index, range(first_rollout_index@2, first_rollout_index@2 + num_repeats@3) as __unnest_placeholder(range(tasks.first_rollout_index,tasks.first_rollout_index + tasks.num_repeats)), agent_name@1 as agent_name, request@4 as request]
                  ByTaskExec: RepartitionExec: partitioning=Hash([task_index@0], 3), input_partitions=1
                    DataSourceExec: file_groups={1 group: [[TASKS]]}, projection=[task_index, agent_name, first_rollout_index, num_repeats, request], file_type=parquet
        ");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_leaves_out_what_has_landed_by_a_join() {
    let place = Workspace::new();
    let agents = quick(&[("alpha", AgentConfig::default())]);
    let sim = Sim::start(agents).await.unwrap();
    let settings = place.settings(&tasks(7, &["alpha"]), 1, &sim);
    sweep(settings.clone()).await;
    let settings = Settings {
        resume: true,
        extend: true,
        num_repeats: "2".parse().unwrap(),
        ..settings
    };
    let plan = Sweep::prepare(settings).await.unwrap();
    let plan = plan.plan().await.unwrap();
    let join = "HashJoinExec: mode=CollectLeft, join_type=RightAnti";
    assert!(plan.physical.contains(join), "{}", plan.physical);
    assert_eq!(plan.num_pending(), 7);
}
