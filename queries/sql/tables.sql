-- The tables of a session, those of the default schema first.
SELECT
    CASE tables.table_schema WHEN 'public' THEN '' ELSE tables.table_schema || '.' END || tables.table_name AS name,
    lower(tables.table_type) AS kind,
    count(columns.column_name) AS columns
FROM information_schema.tables AS tables
JOIN information_schema.columns AS columns USING (table_catalog, table_schema, table_name)
WHERE tables.table_schema <> 'information_schema'
GROUP BY tables.table_schema, tables.table_name, tables.table_type
ORDER BY tables.table_schema <> 'public', name
