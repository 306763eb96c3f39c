package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// roundTrips is the number of notifications that are timed; the fastest counts,
// because the first ones include warm-up.
const roundTrips = 3

// checkNotify listens as a relay does, and notifies from the connection of the other checks on a separate channel.
func checkNotify(ctx context.Context, e *exam) (string, []Finding, error) {
	listening, err := e.Listen(ctx)
	if err != nil {
		return "", []Finding{found(Error, "fix database.listen_url",
			"The connection that listens cannot be opened: %s.", oneLine(err.Error()))}, nil
	}

	defer closeConn(ctx, listening)

	var may bool
	if err := e.conn.QueryRow(ctx, `SELECT `+pgschema.MayNotify).Scan(&may); err != nil {
		return "", nil, err
	}

	if !may {
		return "", []Finding{found(Note, "see the notification queue",
			"Notifications cannot be tested, because the queue of the server is more than half full.")}, nil
	}

	channel := "notifyd_doctor_" + rand.Text()
	if _, err := listening.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return "", nil, fmt.Errorf("listen: %w", err)
	}

	var best time.Duration
	for i := range roundTrips {
		took, err := e.notify(ctx, listening, channel)
		if errors.Is(err, errSilent) {
			return "", []Finding{found(Error, "point database.listen_url at PostgreSQL itself, or run notifyd migrate --notify off to poll",
				"LISTEN is accepted and no notification arrives within %v: a transaction pooler is in between, or "+
					"listen_url leads to another database.", e.Limits.Canary)}, nil
		}

		if err != nil {
			return "", nil, err
		}

		if i == 0 || took < best {
			best = took
		}
	}

	if best > e.Limits.RoundTrip {
		return "", []Finding{found(Warning, "check the load of the server and the network to it",
			"A notification takes %v to arrive; more than %v is slow.", round(best), e.Limits.RoundTrip)}, nil
	}

	return fmt.Sprintf("A notification arrives after %v.", round(best)), nil, nil
}

var errSilent = errors.New("no notification arrived")

// ring sends one notification and returns the time until it arrived.
func (e *exam) notify(ctx context.Context, listening *pgx.Conn, channel string) (time.Duration, error) {
	began := time.Now()
	if _, err := e.conn.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, rand.Text()); err != nil {
		return 0, fmt.Errorf("notify: %w", err)
	}

	within, cancel := context.WithTimeout(ctx, e.Limits.Canary)
	defer cancel()

	if _, err := listening.WaitForNotification(within); err != nil {
		if within.Err() != nil && ctx.Err() == nil {
			return 0, errSilent
		}
		return 0, fmt.Errorf("wait for the notification: %w", err)
	}

	return time.Since(began), nil
}

func round(d time.Duration) time.Duration {
	if d > time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

// poolerTries is the number of other connections that take a server session while
// one waits for its next turn: more sessions than a pooler keeps idle without
// need.
const poolerTries = 3

// checkPooler checks whether a connection keeps its session of the server. A
// pooler invents the process ids that its clients get; one that pools
// transactions gives a server session to the next client as soon as it is idle.
func checkPooler(ctx context.Context, e *exam) (string, []Finding, error) {
	first, err := e.Connect(ctx)
	if err != nil {
		return "", nil, err
	}

	defer closeConn(ctx, first)
	backend, err := backendOf(ctx, first, `SELECT pg_backend_pid()`)
	if err != nil {
		return "", nil, err
	}

	shared, err := e.sharesSession(ctx, first, backend)
	if err != nil {
		return "", nil, err
	}

	switch {
	case shared && e.mode == outboxsql.ModeStream:
		return "", []Finding{found(Note, "let database.listen_url lead to PostgreSQL itself, or no notification is "+
			"heard; where throughput counts, database.url, too",
			"A transaction pooler is in between: two connections got the same session of the server. A relay of a "+
				"stream works there, but for LISTEN.")}, nil
	case shared:
		return "", []Finding{found(Error, "point database.url at PostgreSQL itself, or set pool_mode = session for notifyd",
			"A transaction pooler is in between: two connections got the same session of the server, and the locks "+
				"and statements of a relay do not survive that.")}, nil
	case int64(first.PgConn().PID()) != int64(backend):
		return "", []Finding{found(Note, "point database.url at PostgreSQL itself, which saves a hop",
			"A pooler is in between; it keeps sessions.")}, nil
	}

	return "Connections lead to the server itself, and locks of a session last.", nil, nil
}

// sharesSession reports whether other connections get the session of first while
// it is idle, whether first gets another session, or whether first loses a lock
// of its session.
func (e *exam) sharesSession(ctx context.Context, first *pgx.Conn, backend int32) (bool, error) {
	lock := time.Now().UnixNano() // unused elsewhere
	if _, err := first.Exec(ctx, `SELECT pg_advisory_lock($1)`, lock); err != nil {
		return false, err
	}

	for range poolerTries {
		other, err := e.Connect(ctx)
		if err != nil {
			return false, err
		}
		defer closeConn(ctx, other) // all of them stay open until the end

		if _, err := other.Exec(ctx, `BEGIN`); err != nil {
			return false, err
		}

		pid, err := backendOf(ctx, other, `SELECT pg_backend_pid()`)
		if err == nil && pid == backend { // the pooler would keep the lock
			_, err = other.Exec(ctx, `SELECT pg_advisory_unlock($1)`, lock)
			return true, err
		}
		if err != nil {
			return false, err
		}
	}

	// The unlock counts where the lock is held, and warns elsewhere.
	var ours bool
	err := first.QueryRow(ctx, `SELECT pg_backend_pid() = $1 AND pg_advisory_unlock($2)`, backend, lock).Scan(&ours)
	if err != nil {
		return false, err
	}

	return !ours, nil
}

func backendOf(ctx context.Context, conn *pgx.Conn, sql string) (pid int32, err error) {
	err = conn.QueryRow(ctx, sql).Scan(&pid)
	return pid, err
}

// checkQueue checks how full the notification queue is: when it is full, commits fail.
func checkQueue(ctx context.Context, e *exam) (string, []Finding, error) {
	var usage float64
	if err := e.conn.QueryRow(ctx, `SELECT pg_notification_queue_usage()`).Scan(&usage); err != nil {
		return "", nil, err
	}

	if usage <= e.Limits.QueueUsage {
		return fmt.Sprintf("The notification queue is %.1f %% full.", usage*100), nil, nil
	}

	severity := Warning
	if usage > 0.5 { // where the server begins to warn
		severity = Error
	}

	return "", []Finding{found(severity, "end the session that listens inside a transaction: SELECT pid, usename, "+
		"application_name FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' ORDER BY xact_start",
		"The notification queue is %.1f %% full: a session that listens, in whatever database of the server, does not "+
			"receive its notifications. From 50 %% on notifyd does not notify, and relays poll. When the queue is "+
			"full, PostgreSQL refuses every other commit that notifies.", usage*100)}, nil
}
