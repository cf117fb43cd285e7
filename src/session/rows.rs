//! Rows of a query: [`Rows`] returns them one by one, [`row!`] declares them, and [`Column`] reads one column of a
//! batch.

use std::collections::VecDeque;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::prelude::{DataFrame, SessionContext};
use futures::StreamExt;

use super::AHEAD;

/// Reads the rows of a batch.
pub(crate) type Decode<T> = fn(&RecordBatch) -> Result<Vec<T>>;

/// The rows of a query; one batch is held at a time, and those that [`Rows::ahead`] computes.
pub(crate) struct Rows<T> {
    stream: SendableRecordBatchStream,
    decode: Decode<T>,
    ready: VecDeque<T>,
}

impl<T> Rows<T> {
    /// Starts a query.
    pub(crate) async fn of(ctx: &SessionContext, sql: &str, decode: Decode<T>) -> Result<Self> {
        Self::with_parameters(ctx, sql, &[], decode).await
    }

    /// Starts a query that takes parameters.
    pub(crate) async fn with_parameters(
        ctx: &SessionContext,
        sql: &str,
        parameters: &[(&str, ScalarValue)],
        decode: Decode<T>,
    ) -> Result<Self> {
        let stream = started(ctx, sql, parameters).await?;
        Ok(Self::of_stream(stream, decode))
    }

    /// Starts a query that was planned.
    pub(crate) async fn start(frame: DataFrame, decode: Decode<T>) -> Result<Self> {
        let stream = frame.execute_stream().await?;
        Ok(Self::of_stream(stream, decode))
    }

    fn of_stream(stream: SendableRecordBatchStream, decode: Decode<T>) -> Self {
        Self {
            stream,
            decode,
            ready: VecDeque::new(),
        }
    }

    /// Computes the next batches on a task of its own, while the rows of one are read.
    pub(crate) fn ahead(mut self) -> Self {
        self.stream = spawn_buffered(self.stream, AHEAD);
        self
    }

    /// Looks at the next row.
    pub(crate) async fn peek(&mut self) -> Result<Option<&T>> {
        while self.ready.is_empty() {
            let Some(batch) = self.stream.next().await else {
                return Ok(None);
            };
            let batch = batch?;
            self.ready = (self.decode)(&batch)?.into();
        }
        Ok(self.ready.front())
    }

    /// Returns the next row, if `is_it` returns true for it.
    pub(crate) async fn next_if(&mut self, is_it: impl FnOnce(&T) -> bool) -> Result<Option<T>> {
        match self.peek().await? {
            Some(row) if is_it(row) => Ok(self.ready.pop_front()),
            _ => Ok(None),
        }
    }

    /// Returns the next row.
    pub(crate) async fn next(&mut self) -> Result<Option<T>> {
        self.next_if(|_| true).await
    }

    /// Returns all remaining rows.
    pub(crate) async fn collect(mut self) -> Result<Vec<T>> {
        let mut rows = Vec::from(self.ready);
        while let Some(batch) = self.stream.next().await {
            rows.extend((self.decode)(&batch?)?);
        }
        Ok(rows)
    }
}

/// Starts a query. It is no method of [`Rows`], to be compiled once and not for each type of row.
async fn started(
    ctx: &SessionContext,
    sql: &str,
    parameters: &[(&str, ScalarValue)],
) -> Result<SendableRecordBatchStream> {
    let mut frame = ctx.sql(sql).await?;
    if !parameters.is_empty() {
        frame = frame.with_param_values(parameters.to_vec())?;
    }
    frame.execute_stream().await
}

fn column(
    batch: &RecordBatch,
    name: &str,
    data_type: &DataType,
    expected: &'static str,
) -> Result<ArrayRef> {
    let column = batch.column_by_name(name);
    let column = column.and_then(|column| cast(column, data_type).ok());
    column.ok_or_else(|| {
        let column = name.to_owned();
        DataFusionError::External(Box::new(NoColumn { column, expected }))
    })
}

/// The error of a query that lacks a column, or has one of another type.
#[derive(Debug, thiserror::Error)]
#[error("the query returns no column '{column}' of type {expected}")]
pub(crate) struct NoColumn {
    pub(crate) column: String,
    pub(crate) expected: &'static str,
}

/// A type that the columns of a query are read as.
pub(crate) trait Column: Sized {
    /// Returns the values of a column.
    ///
    /// # Errors
    /// There is no such column, or it is of another type.
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>>;
}

impl Column for Option<i64> {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let column = column(batch, name, &DataType::Int64, "BIGINT")?;
        Ok(column.as_primitive::<Int64Type>().iter().collect())
    }
}

impl Column for Option<f64> {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let column = column(batch, name, &DataType::Float64, "DOUBLE")?;
        Ok(column.as_primitive::<Float64Type>().iter().collect())
    }
}

impl Column for Option<String> {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let column = column(batch, name, &DataType::Utf8View, "VARCHAR")?;
        let texts = column.as_string_view().iter();
        Ok(texts.map(|text| text.map(str::to_owned)).collect())
    }
}

/// Reads null as zero.
impl Column for i64 {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let integers = Option::<Self>::read(batch, name)?.into_iter();
        Ok(integers.map(Option::unwrap_or_default).collect())
    }
}

/// Reads null as NaN.
impl Column for f64 {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let floats = Option::<Self>::read(batch, name)?.into_iter();
        Ok(floats.map(|float| float.unwrap_or(Self::NAN)).collect())
    }
}

/// Empty where a value is null.
impl Column for String {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let texts = Option::<Self>::read(batch, name)?.into_iter();
        Ok(texts.map(Option::unwrap_or_default).collect())
    }
}

/// Reads null and negative numbers as zero.
impl Column for u64 {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let integers = i64::read(batch, name)?.into_iter();
        Ok(integers
            .map(|integer| integer.try_into().unwrap_or(0))
            .collect())
    }
}

/// Reads null as zero, and a number that does not fit as the nearest one.
impl Column for u32 {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let integers = u64::read(batch, name)?.into_iter();
        Ok(integers
            .map(|integer| integer.try_into().unwrap_or(Self::MAX))
            .collect())
    }
}

/// Reads null as an empty list, and leaves out nulls within a list.
impl Column for Vec<i64> {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let item = Field::new_list_field(DataType::Int64, true);
        let column = column(batch, name, &DataType::List(item.into()), "BIGINT[]")?;
        let lists = column.as_list::<i32>().iter().map(|list| {
            let list = list.as_ref().map(|list| list.as_primitive::<Int64Type>());
            list.into_iter().flatten().flatten().collect()
        });
        Ok(lists.collect())
    }
}

/// Reads null as false.
impl Column for bool {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let column = column(batch, name, &DataType::Boolean, "BOOLEAN")?;
        let truths = column.as_boolean().iter();
        Ok(truths.map(Option::unwrap_or_default).collect())
    }
}

/// Empty where a value is null.
impl Column for Vec<u8> {
    fn read(batch: &RecordBatch, name: &str) -> Result<Vec<Self>> {
        let column = column(batch, name, &DataType::Binary, "BYTEA")?;
        let binaries = column.as_binary::<i32>().iter();
        Ok(binaries
            .map(|bytes| bytes.unwrap_or_default().to_owned())
            .collect())
    }
}

/// Declares a struct that is a row of a query: each field is the column of its name. `rows` reads the rows of a batch.
macro_rules! row {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $scope:vis $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$doc])* $scope $field: $type,)*
        }

        impl $name {
            pub(crate) fn rows(
                batch: &arrow::array::RecordBatch,
            ) -> datafusion::common::Result<Vec<Self>> {
                $(let mut $field = $crate::session::Column::read(batch, stringify!($field))?.into_iter();)*
                let rows = (0..batch.num_rows()).map_while(|_| Some(Self { $($field: $field.next()?,)* }));
                Ok(rows.collect())
            }
        }
    };
}
pub(crate) use row;
