// Package store has the database code that both engines use: connections, the relay's session, retention, partitions,
// and the backlog.
package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/login"
	"github.com/notifyd/notifyd/internal/modelock"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Timeouts of the relay's connections. They are far above the times of a healthy server, and bound how long a sick
// one can block the relay.
const (
	// connectTimeout bounds dialling, TLS and authentication together.
	connectTimeout = 10 * time.Second
	// RoundTripTimeout bounds one flight of statements.
	RoundTripTimeout = 15 * time.Second
	// statementTimeout makes the server cancel a statement before RoundTripTimeout.
	statementTimeout = 10 * time.Second
	// lockTimeout bounds the wait for a row that another relay is settling.
	lockTimeout = 5 * time.Second
	// idleInTransaction lets the server end the transaction of a frozen relay, so that its rows are free again. The
	// lock budget is far below it.
	idleInTransaction = 5 * time.Second
	// leasesIdle lets the server end the session that renews the leases of a stream if its relay is frozen. The mode
	// of the table can change then. A relay uses the session several times a second.
	leasesIdle = 5 * time.Second
	// closeTimeout bounds the orderly end of a connection.
	closeTimeout = time.Second
)

// errNoAnswer is the cause when a flight of statements takes longer than RoundTripTimeout.
var errNoAnswer = fmt.Errorf("the database did not answer within %v", RoundTripTimeout)

// RoleLeases is the role of the session that renews the leases of a stream. The server ends it after 5 s without a
// statement.
const RoleLeases = "leases"

// idleLimit returns how long a session may be idle, 0 for no limit: a quiet night must not end the session that holds the notify lock.
func idleLimit(role string) time.Duration {
	if role == RoleLeases {
		return leasesIdle
	}
	return 0
}

// Connector opens the relay's connections. They never come from a pool: each one is a session with its own settings
// and locks.
type Connector struct {
	// Config is where to connect. It is copied, never changed.
	Config *pgx.ConnConfig
	// Before, if set, may change the copy before each connect, for example to set a fresh password.
	Before func(ctx context.Context, c *pgx.ConnConfig) error
	// Schema has the tables; it becomes the search_path.
	Schema string
	// Wants is how many connections the relay opens at most, for its errors; 0: not known.
	Wants int

	redirect      atomic.Pointer[pgx.ConnConfig] // see Redirect
	keepsSessions atomic.Bool                    // a pooler exists and keeps sessions
	shared        atomic.Bool                    // a pooler exists and does not keep sessions
	opens         openConns
	logins        login.Gate
}

// HoldMode ensures that the table has the wanted mode, and holds the mode while the session of conn lives: see
// modelock.Hold. If the table has the other mode, or is a copy, HoldMode calls refused, if set, with the error.
func (c *Connector) HoldMode(ctx context.Context, conn *pgx.Conn, want outboxsql.Mode, refused func(error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, RoundTripTimeout, errNoAnswer)
	defer cancel()

	err := modelock.Hold(ctx, conn, c.Schema, want)
	if modelock.EndsRelay(err) && refused != nil {
		refused(err)
	}

	return err
}

// Redirect sends all later connections to another target, past a pooler.
func (c *Connector) Redirect(to *pgx.ConnConfig) {
	c.redirect.Store(to)
	c.shared.Store(false)
}

// Redirected reports whether Redirect was called.
func (c *Connector) Redirected() bool { return c.redirect.Load() != nil }

// config returns a copy of the target of connections.
func (c *Connector) config(ctx context.Context) (*pgx.ConnConfig, error) {
	if direct := c.redirect.Load(); direct != nil {
		return direct.Copy(), nil
	}

	cfg := c.Config.Copy()
	if c.Before != nil {
		if err := c.Before(ctx, cfg); err != nil {
			return nil, fmt.Errorf("prepare the connection: %w", err)
		}
	}

	return cfg, nil
}

// Connect opens a direct connection with the application_name notifyd/<role>. After a refused login it returns the
// refusal without another login until one is due: see [login.Gate]. Behind a pooler in transaction mode it returns
// [ErrPooler]. The caller closes the connection with [Close].
func (c *Connector) Connect(ctx context.Context, role string) (*pgx.Conn, error) {
	conn, err := c.direct(ctx, role)
	if err != nil {
		return nil, err
	}
	return conn.Conn, nil
}

func (c *Connector) direct(ctx context.Context, role string) (*session.Conn, error) {
	return c.open(ctx, role, false)
}

// RequiresMode returns a check for shared connections: the table has the wanted mode, and holds it until the end of
// the transaction.
func (c *Connector) RequiresMode(want outboxsql.Mode) func(context.Context, session.Querier) error {
	return func(ctx context.Context, db session.Querier) error {
		return modelock.HoldIn(ctx, db, c.Schema, want) //nolint:wrapcheck // the error names what failed
	}
}

// Open is [Connector.Connect] for work without session state: behind a pooler in transaction mode it returns a shared
// connection.
func (c *Connector) Open(ctx context.Context, role string) (*session.Conn, error) {
	return c.open(ctx, role, true)
}

func (c *Connector) open(ctx context.Context, role string, shares bool) (*session.Conn, error) {
	late := fmt.Errorf("no connection within the connect timeout of %v", connectTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, late)
	defer cancel()

	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}

	err = c.checkPooler(ctx, conn)
	if errors.Is(err, ErrPooler) && shares {
		if conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe { // the first one that found the pooler
			Close(ctx, conn)
			conn, err = c.dial(ctx)
			if err != nil {
				return nil, err
			}
		}
		return c.share(ctx, conn, role)
	}

	if err != nil {
		Close(ctx, conn)
		return nil, fmt.Errorf("connect as notifyd/%s: %w", role, err)
	}

	if err := session.Set(ctx, conn, append(c.settings(role), directSettings(role)...)); err != nil {
		Close(ctx, conn)
		return nil, err //nolint:wrapcheck // the error names what failed
	}

	return c.opened(ctx, session.Direct(conn), role)
}

// share configures a connection behind a pooler in transaction mode.
func (c *Connector) share(ctx context.Context, conn *pgx.Conn, role string) (*session.Conn, error) {
	shared, err := session.Shared(ctx, conn, c.settings(role))
	if err != nil {
		Close(ctx, conn)
		return nil, err //nolint:wrapcheck // the error names what failed
	}
	return c.opened(ctx, shared, role)
}

// opened checks the server of a new connection.
func (c *Connector) opened(ctx context.Context, conn *session.Conn, role string) (*session.Conn, error) {
	var inRecovery bool
	err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`, pgx.QueryExecModeExec).Scan(&inRecovery)
	switch {
	case isStatementMode(conn, err):
		err = fmt.Errorf("connect as notifyd/%s: %w", role, ErrPooler)
	case err != nil:
		err = fmt.Errorf("prepare the session: %w", err)
	case inRecovery:
		err = fmt.Errorf("connect as notifyd/%s: the server is a standby: %w", role, pgconn.ErrReadOnlyConnection)
	default:
		c.opens.add(role, conn.PgConn().CleanupDone())
		return conn, nil
	}

	Close(ctx, conn.Conn)
	return nil, err
}

// dial connects without settings that poolers do not know.
func (c *Connector) dial(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := c.config(ctx)
	if err != nil {
		return nil, err
	}

	cfg.DialFunc = dialer().DialContext
	session.Startup(cfg)

	if c.shared.Load() {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler loses prepared statements
	}

	if cfg.ValidateConnect == nil && len(cfg.Fallbacks) > 0 {
		// Of several hosts, choose the primary. pgx would accept the first that answers.
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}

	who := strings.Join([]string{cfg.Host, strconv.Itoa(int(cfg.Port)), cfg.User, cfg.Password}, "\x00")
	if err := c.logins.Refusal(who); err != nil {
		return nil, &connectError{err, c.Wants}
	}

	var conn *pgx.Conn
	err = login.Shared(ctx, who, isWrongPassword, func() (err error) {
		conn, err = pgx.ConnectConfig(ctx, cfg)
		return err //nolint:wrapcheck // below
	})
	if err != nil {
		if IsLogin(err) {
			c.logins.Refused(who, err)
		}
		return nil, &connectError{err, c.Wants}
	}

	c.logins.Accepted()
	return conn, nil
}

// connectError is the error of a connection, on one line for the log.
type connectError struct {
	error

	wants int // see Connector.Wants
}

func (e *connectError) Error() string {
	text := session.ConnectText(e.error)
	if cure := crowded(e.error, e.wants); cure != "" {
		text += ": " + cure
	}
	return text
}

func (e *connectError) Unwrap() error { return e.error }

// Refusal returns the cure if the server refused the connection for a lasting reason, such as a wrong password; "" if
// the server did not answer, or may accept soon.
func (e *connectError) Refusal() string { return refusal(e.error) }

// Cure returns what a person can do, also about an error that may end without help.
func (e *connectError) Cure() string { return ConnectCure(e.error) }

// settings returns the settings that the relay relies on, whatever the defaults of role and database. Statements set
// them, because poolers refuse startup parameters that they do not know.
func (c *Connector) settings(role string) [][2]string {
	return append(session.Settings(), [][2]string{
		{"application_name", "notifyd/" + role},
		{"search_path", pgx.Identifier{c.Schema}.Sanitize()},
		{"default_transaction_read_only", "off"},
		// A lost completion causes a redelivery, never a loss. Writers are not affected.
		{"synchronous_commit", "off"},

		{"statement_timeout", milliseconds(statementTimeout)},
		{"lock_timeout", milliseconds(lockTimeout)},
		{"idle_in_transaction_session_timeout", milliseconds(idleInTransaction)},
		{"transaction_timeout", "0"}, // since PostgreSQL 17; the other timeouts bound the relay's transactions

		// Plans are pinned: every statement has one good plan, by index, and must have it on an empty table and on
		// one that was never analyzed.
		{"plan_cache_mode", "force_generic_plan"},
		{"enable_indexscan", "on"},
		{"enable_indexonlyscan", "on"},
		{"enable_tidscan", "on"},
		{"enable_nestloop", "on"},
		{"enable_partition_pruning", "on"},
		{"enable_seqscan", "off"},
		{"enable_bitmapscan", "off"},
		{"enable_sort", "off"},
		{"enable_hashjoin", "off"},
		{"enable_mergejoin", "off"},
		{"jit", "off"},
		{"max_parallel_workers_per_gather", "0"}, // rows come in the order of one scan
	}...)
}

// directSettings returns the settings of a session that only the relay uses.
func directSettings(role string) [][2]string {
	return [][2]string{
		{"idle_session_timeout", milliseconds(idleLimit(role))},
		// A vanished relay must not lock rows and suppress the trigger for hours.
		{"tcp_keepalives_idle", seconds(keepAliveIdle)},
		{"tcp_keepalives_interval", seconds(keepAliveInterval)},
		{"tcp_keepalives_count", strconv.Itoa(keepAliveCount)},
		{"tcp_user_timeout", milliseconds(userTimeout)},
	}
}

// Close ends the connection in order, within its own short timeout, even if ctx has ended. It always closes the
// socket.
func Close(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the socket is closed either way
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d.Seconds()), 10) }

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
