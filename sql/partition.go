package outboxsql

import (
	"context"
	_ "embed" // the files below
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

//go:embed partitions.sql
var partitionsSQL string

//go:embed partition_prepare.sql
var partitionPrepareSQL string

//go:embed partition_swap.sql
var partitionSwapSQL string

// keysBatch is how many idempotency keys one statement copies.
const keysBatch = 5000

// ErrObstacle is returned by [Partition] if the table has a property that cannot be carried over.
var ErrObstacle = errors.New("outbox_events cannot be partitioned as it is")

// PartitionOptions configure [Partition]; the zero value is valid.
type PartitionOptions struct {
	// LockPatience is how long to try to lock the table exclusively for a moment, while writers use
	// it; 0 is [DefaultLockPatience].
	LockPatience time.Duration
	// Now determines the current day; zero is the clock of the database.
	Now time.Time
	// Progress, if set, is called with the next step.
	Progress func(step string)
	// Waiting, if set, is called now and then with the sessions whose locks Partition waits for.
	Waiting func(line string)
}

// Partition partitions outbox_events by day, after [Migrate]. Writers and relays may use the table,
// and it may hold any number of events: it becomes the first partition as it is. Partition locks
// the table exclusively twice, for some milliseconds; each attempt holds up writers for 200 ms at
// most. A call may be repeated, whether it was interrupted or not. The only way back is to copy the
// events. The error wraps [ErrObstacle], with the remedy, if the table has a property that would be
// lost.
func Partition(ctx context.Context, conn *pgx.Conn, schema string, o PartitionOptions) (err error) {
	if err := pgschema.Validate(schema); err != nil {
		return err
	}
	if err := Check(ctx, conn, schema); err != nil {
		return err
	}

	p := &partitioning{
		change: change{conn: conn, schema: schema, patience: o.LockPatience, progress: o.Progress, waiting: o.Waiting},
		now:    o.Now,
	}

	unlock, err := p.lockSchema(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock(ctx)) }()

	if err := p.run(ctx); err != nil {
		return fmt.Errorf("partition outbox_events of schema %q: %w", schema, err)
	}

	return nil
}

// partitioning is one call of Partition.
type partitioning struct {
	change
	now time.Time // zero is the clock of the database
}

func (p *partitioning) run(ctx context.Context) error {
	done, err := pgschema.Partitioned(ctx, p.conn, p.schema)
	if err != nil {
		return err
	}

	if done {
		p.say("the table is already partitioned: checking its partitions")
		return p.settled(ctx, p.alone(ctx, partitionsSQL+p.extend()))
	}

	if err := p.obstacles(ctx); err != nil {
		return err
	}

	p.say("bounding the ids of the table")
	if err := p.alone(ctx, partitionsSQL+partitionPrepareSQL); err != nil {
		return err
	}

	p.say("checking that all ids are within the bound: this reads the table without blocking writers and relays")

	// Its lock holds up no writer and no relay, whether it is granted or waited for.
	if err := p.tx(ctx, p.lasts(), `ALTER TABLE outbox_events VALIDATE CONSTRAINT outbox_events_bound;`); err != nil {
		return err
	}

	p.say("copying idempotency keys")
	if err := p.copyKeys(ctx); err != nil {
		return err
	}

	p.say("putting the partitioned table in its place")
	return p.settled(ctx, p.alone(ctx, partitionSwapSQL+partitionsSQL+triggersSQL+p.extend()))
}

// settled records, if err is nil, that the partitions created so far are committed and visible to
// all.
func (p *partitioning) settled(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	return p.alone(ctx, p.extend())
}

// extend creates the partitions of today and of the days ahead.
func (p *partitioning) extend() string {
	now := "clock_timestamp()"
	if !p.now.IsZero() {
		now = "'" + p.now.UTC().Format(time.RFC3339Nano) + "'::timestamptz"
	}
	return fmt.Sprintf("SELECT outbox_partitions_extend(%s, %d);\n", now, pgschema.PartitionsAhead)
}

// copyKeys stores the idempotency keys of events that are older than the trigger that stores them.
func (p *partitioning) copyKeys(ctx context.Context) error {
	name := func(table string) string { return pgx.Identifier{p.schema, table}.Sanitize() }

	eventType := ""
	key := ""
	n := keysBatch
	for n == keysBatch {
		// One more than a batch would be found again by the next statement.
		err := p.conn.QueryRow(ctx, `WITH seen AS MATERIALIZED (
				SELECT id, event_type, idempotency_key FROM `+name("outbox_events")+`
				WHERE idempotency_key IS NOT NULL AND (event_type, idempotency_key) > ($1, $2)
				ORDER BY event_type, idempotency_key LIMIT $3),
			noted AS (INSERT INTO `+name("outbox_keys")+` (event_id, event_type, idempotency_key)
				SELECT id, event_type, idempotency_key FROM seen ON CONFLICT DO NOTHING)
			SELECT count(*)::int, coalesce((array_agg(event_type ORDER BY event_type DESC, idempotency_key DESC))[1], ''),
				coalesce((array_agg(idempotency_key ORDER BY event_type DESC, idempotency_key DESC))[1], '') FROM seen`,
			eventType, key, keysBatch).Scan(&n, &eventType, &key)
		if err != nil {
			return fmt.Errorf("copy idempotency keys: %w", err)
		}
	}

	return nil
}

// obstacles lists the properties that the table would lose.
func (p *partitioning) obstacles(ctx context.Context) error {
	rows, err := p.conn.Query(ctx, `SELECT what FROM (
			SELECT format('the view %s reads it: drop the view, and recreate it afterwards', r.ev_class::regclass) AS what
			FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1::regclass AND r.ev_class <> d.refobjid
			UNION SELECT format('it has the trigger %I: drop it, and recreate it afterwards', tgname) FROM pg_trigger
			WHERE tgrelid = $1::regclass AND NOT tgisinternal
				AND tgname NOT IN ('outbox_events_notify', 'outbox_events_serialize', 'outbox_events_key',
				'outbox_events_key_gone', 'outbox_events_keys_gone')
			UNION SELECT format('it has the rule %I: drop it', rulename) FROM pg_rewrite WHERE ev_class = $1::regclass
			UNION SELECT format('the foreign key %I of %s involves it: drop it', conname, conrelid::regclass) FROM pg_constraint
			WHERE contype = 'f' AND $1::regclass IN (conrelid, confrelid)
			UNION SELECT format('the index %s is unique, which it cannot be across partitions: drop it', indexrelid::regclass) FROM pg_index
			WHERE indrelid = $1::regclass AND (indisunique OR indisexclusion) AND NOT indisprimary AND indexrelid <> to_regclass($2)
			UNION SELECT format('the index %s is not valid, and would be rebuilt while writers are blocked: drop it',
				indexrelid::regclass) FROM pg_index
			WHERE indrelid = $1::regclass AND NOT indisvalid
			UNION SELECT format('the check %I is not valid or has NO INHERIT: validate it, or drop it', conname) FROM pg_constraint
			WHERE conrelid = $1::regclass AND contype = 'c' AND (NOT convalidated OR connoinherit) AND conname <> 'outbox_events_bound'
			UNION SELECT 'it has row level security: disable it' FROM pg_class WHERE oid = $1::regclass AND relrowsecurity
			UNION SELECT format('the publication %I publishes it: remove the table from the publication', pubname)
				FROM pg_publication_rel JOIN pg_publication b ON b.oid = prpubid
			WHERE prrelid = $1::regclass
			UNION SELECT 'it inherits from a table, or a table from it: end the inheritance' FROM pg_inherits
				WHERE $1::regclass IN (inhrelid, inhparent)
			UNION SELECT format('its owner, %1$I, may not create tables in the schema: GRANT CREATE ON SCHEMA %2$s TO %1$I',
				pg_get_userbyid(c.relowner), c.relnamespace::regnamespace)
			FROM pg_class c WHERE oid = $1::regclass AND NOT has_schema_privilege(c.relowner, c.relnamespace, 'CREATE')
		) AS o ORDER BY 1`,
		pgx.Identifier{p.schema, "outbox_events"}.Sanitize(), pgx.Identifier{p.schema, "outbox_events_idempotency"}.Sanitize())
	if err != nil {
		return fmt.Errorf("inspect the table: %w", err)
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("inspect the table: %w", err)
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %s", ErrObstacle, strings.Join(found, "; "))
	}

	return nil
}
