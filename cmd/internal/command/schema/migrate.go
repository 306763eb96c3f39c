package schema

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// NewMigrate returns the command migrate.
func NewMigrate(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or update the tables and the trigger",
		Long: `migrate creates the tables outbox_events and outbox_deliveries and the trigger that
notifies of new events, or upgrades them. It never downgrades. Several relays or
deployments may run it at the same time. It waits for the locks on tables in use for
--timeout at most; each attempt delays writers by 200ms at most.

Without --mode the mode stays as it is; new tables are a queue. With --mode queue it
asks before it gives up events that wait for destinations which the configuration
lacks, unless --yes is given.

With --partitions daily it then makes outbox_events a table with one partition per
day, which retention drops as a whole. The table may be in use, and of any size: its
rows stay in place, and become the first partition. No command undoes that, so it asks
first if there are events, unless --yes is given. Afterwards relays need the setting
"partitions: daily" below "retention".

With --serialize-writers on, transactions that insert events take turns: each waits
until the earlier ones have ended, and then draws its ids. So ids are in the order of
commits. That concerns writers only, and works in both modes. "off" ends it.

With --grant-writer and --grant-relay it gives two existing roles the privileges that
they need and no more: a writer may insert events, a relay may deliver them. With
--print-grants it changes nothing, and prints the SQL for these privileges, which the
owner of the tables runs after each migration.

With --dry-run it changes nothing. It shows the steps, the locks that they take, the
events that wait, and the sessions in the way.`,
		Example: `  notifyd migrate
  notifyd migrate --notify always
  notifyd migrate --partitions daily
  notifyd migrate --mode stream
  notifyd migrate --serialize-writers on
  notifyd migrate --mode stream --dry-run
  notifyd migrate --grant-writer app --grant-relay relay
  notifyd migrate status
  notifyd migrate --print-grants --writer app --relay notifyd | psql app`,
	}
	cmd.AddCommand(newMigrateUpCmd(a), newMigrateStatusCmd(a), newMigratePrintCmd(a))

	up := newMigrateUpCmd(a)
	cmd.Flags().AddFlagSet(up.Flags())
	registerGrants(a, cmd, up.RunE)

	return cmd
}

// upFlags are the flags of "migrate up".
type upFlags struct {
	command.DatabaseFlags
	notify     string
	partitions string
	mode       string
	serialize  cli.OneOf
	timeout    command.Duration
	grants     outboxsql.Roles
	dryRun     bool
	yes        bool
	form       *cli.OneOf
}

func newMigrateUpCmd(a *command.App) *cobra.Command {
	f := upFlags{serialize: cli.OneOf{Words: []string{"on", "off"}}}
	cmd := &cobra.Command{
		Use:     "up", // other tools' name for "notifyd migrate"
		Hidden:  true,
		Short:   "Apply the missing versions",
		Example: "  notifyd migrate up\n  notifyd migrate up --notify always --database-url postgres://owner@localhost/app",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(cmd); err != nil {
				return err
			}

			progress := command.StartProgress(cmd, command.Connecting)
			defer progress.Stop()
			if f.dryRun {
				return f.showEach(cmd, a, progress)
			}
			return each(cmd, a, &f.DatabaseFlags, f.form, func(db command.DatabaseFlags) (*State, error) {
				one := f
				one.DatabaseFlags = db
				return one.migrate(cmd, a, progress)
			}, printMigrated)
		},
	}

	f.Register(cmd)
	registerNotify(cmd, &f.notify)
	cmd.Flags().StringVar(&f.partitions, "partitions", "", "daily makes outbox_events a table with a partition for each `day`, for good")
	command.AddMode(cmd, &f.mode, "")
	cmd.Flags().Var(&f.serialize, "serialize-writers",
		"whether writers are serialized, so that ids are in the order of commits: on or off; default: as it is, off for new tables")
	cmd.Flags().StringVar(&f.grants.Writer, "grant-writer", "", "`role` that gets the privileges to insert events")
	cmd.Flags().StringVar(&f.grants.Relay, "grant-relay", "", "`role` that gets the privileges of a relay")
	command.AddTimeout(cmd, &f.timeout, outboxsql.DefaultLockPatience)
	command.AddDryRun(cmd, &f.dryRun)
	command.AddYes(cmd, &f.yes)
	f.form = command.AddFormat(cmd)

	return cmd
}

func registerNotify(cmd *cobra.Command, notify *string) {
	cmd.Flags().StringVar(notify, "notify", "",
		"when the trigger notifies: `mode` auto (if a relay listens and none polls), always or off (relays poll); "+
			"default: as it is, auto for new tables")
}

// validate refuses values that no table can have.
func (f *upFlags) validate(cmd *cobra.Command) error {
	if err := outboxsql.NotifyMode(f.notify).Validate(); err != nil {
		return command.UsageErrorf("--notify: %w", err)
	}
	if cmd.Flags().Changed("partitions") && f.partitions != "daily" {
		return command.UsageErrorf("--partitions: %q is unknown: use daily; there is no command that takes partitions away", f.partitions)
	}
	if cmd.Flags().Changed("mode") {
		if err := outboxsql.Mode(f.mode).Validate(); err != nil {
			return command.UsageErrorf("--mode: %w", err)
		}
	}
	if _, err := outboxsql.Grants(outboxsql.DefaultSchema, f.grants); err != nil {
		return command.UsageErrorf("--grant-%w", err) // it begins with writer or relay
	}
	return nil
}

// migrate applies the flags, step by step, and returns the result. It prints the steps, unless the result is
// JSON, and on standard error the sessions that it waits for.
func (f *upFlags) migrate(cmd *cobra.Command, a *command.App, progress *command.Progress) (*State, error) {
	ctx := cmd.Context()
	out := cmd.OutOrStdout()
	errOut := cmd.ErrOrStderr()
	if f.form.Value == "json" {
		out = errOut
	}

	conn, err := f.Connect(ctx, a)
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx, conn)
	if err := f.agree(cmd, conn, progress); err != nil {
		return nil, err
	}

	progress.Say("migrating schema %s", f.Schema)
	if conn.PgConn().ParameterStatus("server_encoding") == "SQL_ASCII" {
		_, _ = fmt.Fprintln(errOut, "warning: "+pgschema.NoEncoding)
	}

	waiting := func(line string) { _, _ = fmt.Fprintln(errOut, line) }
	say := func(step string) { // the report fails as well
		progress.Say("%s", step)
		_, _ = fmt.Fprintln(out, step)
	}

	applied, err := outboxsql.Migrate(ctx, conn, f.Schema, outboxsql.MigrateOptions{
		Notify:       outboxsql.NotifyMode(f.notify),
		Mode:         outboxsql.Mode(f.mode),
		LockPatience: time.Duration(f.timeout),
		Progress:     say,
		Waiting:      waiting,
	})
	if err != nil {
		return nil, err
	}
	if err := noteOthers(ctx, conn, f.Schema, applied, errOut); err != nil {
		return nil, err
	}

	if f.partitions != "" {
		o := outboxsql.PartitionOptions{LockPatience: time.Duration(f.timeout), Progress: say, Waiting: waiting}
		if err := outboxsql.Partition(ctx, conn, f.Schema, o); err != nil {
			return nil, err
		}
	}

	if f.mode != "" {
		o, err := f.modeOptions(ctx, a)
		if err != nil {
			return nil, err
		}
		o.LockPatience = time.Duration(f.timeout)
		o.Progress = say
		o.Waiting = waiting
		if err := f.setMode(cmd, conn, o, progress); err != nil {
			return nil, err
		}
	}

	if f.serialize.Value != "" {
		o := outboxsql.SerializeOptions{LockPatience: time.Duration(f.timeout), Waiting: waiting}
		if err := outboxsql.SerializeWriters(ctx, conn, f.Schema, f.serialize.Value == "on", o); err != nil {
			return nil, err
		}
	}

	if err := f.grant(ctx, conn, say); err != nil {
		return nil, err
	}
	return readState(ctx, conn, f.Schema, applied)
}

// agree asks before a step that has no way back.
func (f *upFlags) agree(cmd *cobra.Command, conn *pgx.Conn, progress *command.Progress) error {
	if f.partitions == "" || f.yes {
		return nil
	}

	p, err := outboxsql.PreviewOf(cmd.Context(), conn, f.Schema, f.preview())
	if err != nil {
		return err
	}

	for _, step := range p.Steps {
		if !step.Final {
			continue
		}

		if err := command.Agree(cmd, progress, false, step.Does, "--yes says that this is to be done, --dry-run shows it"); err != nil {
			return err
		}
	}

	return nil
}

// preview returns the changes that the flags ask for.
func (f *upFlags) preview() outboxsql.PreviewOptions {
	o := outboxsql.PreviewOptions{
		Notify:    outboxsql.NotifyMode(f.notify),
		Mode:      outboxsql.Mode(f.mode),
		Partition: f.partitions != "",
	}
	if f.serialize.Value != "" {
		on := f.serialize.Value == "on"
		o.Serialize = &on
	}
	return o
}

// showEach shows the steps that the flags would take at each outbox.
func (f *upFlags) showEach(cmd *cobra.Command, a *command.App, progress *command.Progress) error {
	return each(cmd, a, &f.DatabaseFlags, f.form, func(db command.DatabaseFlags) (preview, error) {
		conn, err := db.Connect(cmd.Context(), a)
		if err != nil {
			return preview{}, err
		}
		defer store.Close(cmd.Context(), conn)

		progress.Say("looking at schema %s", db.Schema)
		p, err := outboxsql.PreviewOf(cmd.Context(), conn, db.Schema, f.preview())
		if err != nil {
			return preview{}, err
		}

		for _, role := range f.grantedRoles() {
			step, err := previewGrant(cmd.Context(), conn, role)
			if err != nil {
				return preview{}, err
			}
			p.Steps = append(p.Steps, step)
		}
		return preview{p}, nil
	}, printPreview)
}

// grantedRole is a role that gets privileges, and the purpose of these.
type grantedRole struct{ name, may string }

// grantedRoles returns the roles of --grant-writer and --grant-relay.
func (f *upFlags) grantedRoles() []grantedRole {
	all := []grantedRole{{f.grants.Writer, "insert events"}, {f.grants.Relay, "deliver events"}}
	return slices.DeleteFunc(all, func(role grantedRole) bool { return role.name == "" })
}

// previewGrant returns the step that gives a role its privileges.
func previewGrant(ctx context.Context, conn *pgx.Conn, role grantedRole) (outboxsql.PreviewStep, error) {
	step := outboxsql.PreviewStep{
		Does:  fmt.Sprintf("let role %s %s", pgx.Identifier{role.name}.Sanitize(), role.may),
		Locks: "nothing that is in use",
	}

	var exists bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, role.name).Scan(&exists)
	if err != nil {
		return step, fmt.Errorf("look for the role %q: %w", role.name, err)
	}
	if !exists {
		step.Refused = "the role does not exist: create it first, with CREATE ROLE"
	}
	return step, nil
}

// grant gives the roles of the flags their privileges.
func (f *upFlags) grant(ctx context.Context, conn *pgx.Conn, say func(string)) error {
	if f.grants == (outboxsql.Roles{}) {
		return nil
	}

	script, err := outboxsql.Grants(f.Schema, f.grants)
	if err != nil {
		return err
	}

	if _, err := conn.Exec(ctx, script, pgx.QueryExecModeSimpleProtocol); err != nil {
		const undefinedObject = "42704"
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedObject {
			return fmt.Errorf("grant privileges: %w: create the role first, with CREATE ROLE", err)
		}
		return fmt.Errorf("grant privileges: %w", err)
	}

	for _, role := range f.grantedRoles() {
		say(fmt.Sprintf("role %s may %s", pgx.Identifier{role.name}.Sanitize(), role.may))
	}
	return nil
}

// setMode changes the mode, and asks before events are given up.
func (f *upFlags) setMode(cmd *cobra.Command, conn *pgx.Conn, o outboxsql.ModeOptions, progress *command.Progress) error {
	o.Drop = f.yes
	err := outboxsql.SetMode(cmd.Context(), conn, f.Schema, outboxsql.Mode(f.mode), o)
	if !errors.Is(err, outboxsql.ErrAbandoned) {
		return err
	}

	if !cli.IsTerminal(cmd.InOrStdin()) {
		return fmt.Errorf("%w with --yes", err)
	}

	progress.Say("")
	fmt.Fprintf(cmd.ErrOrStderr(), "%v. Drop their positions, so that they never get these events? [y/N] ", err) //nolint:errcheck // the answer counts
	if !command.Agreed(cmd.InOrStdin()) {
		return command.ErrNotAgreed
	}

	o.Drop = true
	progress.Say("changing the mode to %s", f.mode)
	return outboxsql.SetMode(cmd.Context(), conn, f.Schema, outboxsql.Mode(f.mode), o)
}

// noteOthers lists the other outboxes of the database when a new one is created in the default schema, perhaps by mistake.
func noteOthers(ctx context.Context, conn *pgx.Conn, schema string, applied []outboxsql.Version, errOut io.Writer) error {
	if schema != outboxsql.DefaultSchema || len(applied) == 0 || applied[0].Number != 1 {
		return nil
	}

	others, err := pgschema.Elsewhere(ctx, conn, schema)
	if err == nil && len(others) > 0 {
		_, err = fmt.Fprintf(errOut, "schema %s has a new outbox; the database has others in schema %s: "+
			"if you meant one of these, set database.schema or --schema\n",
			pgx.Identifier{schema}.Sanitize(), strings.Join(others, ", "))
	}

	return err
}

// modeOptions has the routes and the order of the configuration, if there is one.
func (f *upFlags) modeOptions(ctx context.Context, a *command.App) (o outboxsql.ModeOptions, err error) {
	c, _, err := f.Optional(ctx, a, config.LoadRoutes)
	if err != nil || c == nil {
		return o, err
	}

	unordered := make(map[string]bool, len(c.Destinations)) // has each of them
	for _, d := range c.Destinations {
		unordered[d.Name] = d.Order == delivery.OrderNone
	}

	o.Route = c.RouteOf
	o.Known = func(destination string) bool {
		_, isKnown := unordered[destination]
		return isKnown
	}
	o.Unordered = func(destination string) bool { return unordered[destination] }
	return o, nil
}

// State is the state of the tables, as JSON.
type State struct {
	Schema  string `json:"schema"`
	Version int    `json:"version"`
	Latest  int    `json:"latest"`
	// Ready reports that this notifyd would run with the schema as it is; Problem is why not.
	Ready   bool   `json:"ready"`
	Problem string `json:"problem,omitempty"`
	// Notify is when the trigger notifies, and Mode how relays read the table. Becoming is the mode of an unfinished change.
	Notify     outboxsql.NotifyMode `json:"notify"`
	Mode       outboxsql.Mode       `json:"mode"`
	Becoming   outboxsql.Mode       `json:"becoming,omitempty"`
	Serialized bool                 `json:"writers_serialized"`
	// Partitions is daily or none.
	Partitions string    `json:"partitions"`
	Versions   []version `json:"versions"`
	// Applied are the versions that this run has applied.
	Applied []version `json:"applied"`

	problem error
}

// trouble is why this notifyd would not run with the schema.
func (s *State) trouble() error { return s.problem }

// version is a version of the tables. AppliedAt is nil while it is not applied.
type version struct {
	Number    int        `json:"number"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"`
}

func versionsOf(all []outboxsql.Version) []version {
	list := make([]version, len(all))
	for i, v := range all {
		list[i] = version{Number: v.Number, Name: v.Name}
		if !v.AppliedAt.IsZero() {
			at := v.AppliedAt.UTC()
			list[i].AppliedAt = &at
		}
	}
	return list
}

func readState(ctx context.Context, conn *pgx.Conn, schema string, applied []outboxsql.Version) (*State, error) {
	state, err := outboxsql.ReadState(ctx, conn, schema)
	if err != nil {
		return nil, err
	}

	partitioned, err := pgschema.Partitioned(ctx, conn, schema)
	if err != nil {
		return nil, err
	}

	s := &State{
		Schema:     schema,
		Version:    state.Current,
		Latest:     state.Latest,
		Notify:     state.Notify,
		Mode:       state.Mode,
		Becoming:   state.Becoming,
		Serialized: state.Serialized,
		Partitions: "none",
		Versions:   versionsOf(state.Versions),
		Applied:    versionsOf(applied),
		problem:    outboxsql.Check(ctx, conn, schema),
	}
	if partitioned {
		s.Partitions = "daily"
	}
	s.Ready = s.problem == nil
	if !s.Ready {
		s.Problem = cli.OneLine(s.problem)
	}
	return s, nil
}

// each runs a command for the outbox of the flags, or for each of many, and prints the results. With JSON it fails after a
// result that has a problem.
func each[T interface{ trouble() error }](
	cmd *cobra.Command, a *command.App, db *command.DatabaseFlags, form *cli.OneOf,
	do func(command.DatabaseFlags) (T, error), text func(io.Writer, T) error,
) error {
	out := cmd.OutOrStdout()
	if form.Value != "json" {
		return db.Each(cmd, a, func(one command.DatabaseFlags) error {
			s, err := do(one)
			if err != nil {
				return err
			}
			return text(out, s)
		})
	}

	names, err := db.Several(cmd.Context(), a)
	if err != nil {
		return err
	}
	if names != nil {
		problems := make([]error, 1, len(names)+1)
		problems[0] = command.JSONSections(out, names, func(name string) (any, error) {
			s, err := do(db.Of(name))
			if err != nil {
				return nil, err
			}
			if trouble := s.trouble(); trouble != nil {
				problems = append(problems, fmt.Errorf("outbox %s: %w", name, trouble))
			}
			return s, nil
		})
		return errors.Join(problems...)
	}

	s, err := do(*db)
	if err != nil {
		return err
	}
	return errors.Join(command.WriteJSON(out, s), s.trouble())
}

func printMigrated(out io.Writer, s *State) error {
	var text strings.Builder
	for _, v := range s.Applied {
		fmt.Fprintf(&text, "applied version %d: %s\n", v.Number, v.Name)
	}

	fmt.Fprintf(&text, "schema %s is at version %d, notify %s", s.Schema, s.Version, s.Notify)
	if s.Mode != outboxsql.ModeQueue {
		fmt.Fprintf(&text, ", mode %s", s.Mode)
	}
	if s.Partitions != "none" {
		text.WriteString(", partitions " + s.Partitions)
	}
	if s.Serialized {
		text.WriteString(", writers serialized")
	}
	text.WriteString("\n")

	_, err := io.WriteString(out, text.String())
	return err
}

func newMigrateStatusCmd(a *command.App) *cobra.Command {
	var db command.DatabaseFlags
	var form *cli.OneOf
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the versions and the notify mode",
		Long: `status shows which versions are applied, when the trigger notifies, and whether the
table is a queue or a stream. It exits with 1 if this notifyd would not run with the schema as it is.`,
		Example: "  notifyd migrate status\n  notifyd migrate status -c /etc/notifyd/config.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			progress := command.StartProgress(cmd, command.Connecting)
			defer progress.Stop()
			return each(cmd, a, &db, form, func(one command.DatabaseFlags) (*State, error) { return migrateStatus(cmd, a, one) }, printState)
		},
	}

	db.Register(cmd)
	form = command.AddFormat(cmd)
	return cmd
}

func migrateStatus(cmd *cobra.Command, a *command.App, db command.DatabaseFlags) (*State, error) {
	conn, err := db.Connect(cmd.Context(), a)
	if err != nil {
		return nil, err
	}
	defer store.Close(cmd.Context(), conn)
	return readState(cmd.Context(), conn, db.Schema, nil)
}

// printState prints the state, and returns the problem that keeps notifyd from running with it.
func printState(out io.Writer, s *State) error {
	rows := [][]string{{"VERSION", "NAME", "APPLIED"}}
	for _, v := range s.Versions {
		at := "no"
		if v.AppliedAt != nil {
			at = cli.Moment(*v.AppliedAt)
		}
		rows = append(rows, []string{strconv.Itoa(v.Number), v.Name, at})
	}

	if err := (command.BasePrinter{Out: out}).Table(rows); err != nil {
		return err
	}

	becoming := ""
	if s.Becoming != "" {
		becoming = fmt.Sprintf(", on its way to a %s: run notifyd migrate --mode %[1]s to its end", s.Becoming)
	}
	writers := ""
	if s.Serialized {
		writers = "writers: serialized\n"
	}
	if _, err := fmt.Fprintf(out, "notify: %s\nmode: %s%s\n%s", s.Notify, s.Mode, becoming, writers); err != nil {
		return err
	}

	return s.problem
}

func newMigratePrintCmd(a *command.App) *cobra.Command {
	var db command.DatabaseFlags
	var notify string
	cmd := &cobra.Command{
		Use:     "print",
		Short:   "Print the SQL, to apply it by other means",
		Example: "  notifyd migrate print | psql app\n  notifyd migrate print --schema shop --notify always > migrations/0042_notifyd.sql",
		RunE: func(cmd *cobra.Command, _ []string) error {
			mode := outboxsql.NotifyMode(notify)
			if err := mode.Validate(); err != nil {
				return command.UsageErrorf("--notify: %w", err)
			}

			db.URL = command.First(db.URL, "unused") // printing connects to nothing
			if err := db.Resolve(cmd.Context(), a); err != nil {
				return err
			}

			script, err := outboxsql.Script(db.Schema, mode)
			if err != nil {
				return err
			}

			_, err = fmt.Fprint(cmd.OutOrStdout(), script)
			return err
		},
	}

	db.RegisterSchema(cmd)
	registerNotify(cmd, &notify)
	return cmd
}
