package configuration

import (
	"cmp"
	"context"
	"slices"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/notifyd/notifyd/cmd/internal/outboxes"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/store"
)

// defaultPlanScan bounds the rows of each kind that "plan" counts.
const defaultPlanScan = 100_000

type planFlags struct {
	against  string
	outbox   string
	offline  bool
	exitCode bool
	scan     int
	form     *cli.OneOf
}

// NewPlan returns the command plan.
func NewPlan(a *command.App) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a new configuration would change",
		Long: `plan compares a configuration with another one, and with the database: which
waiting events would go elsewhere, which would be left without a route, which
deliveries wait for missing destinations, and which kept events of a stream a
destination would get that is new or comes back. It changes nothing and shows no secrets.
Without --against it shows what the database alone can answer.

It counts by index, and stops counting at --scan rows of a kind. Where routes have
conditions (when), it evaluates them for the first 1000 waiting events that they are for.

With --exit-code it exits with 3 if there are changes.`,
		Example: "  notifyd plan -c new.yaml --against /etc/notifyd/config.yaml\n  notifyd plan -c new.yaml --against old.yaml --offline --exit-code",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.scan < 1 {
				return command.UsageErrorf("--scan must be at least 1")
			}
			if f.offline && f.against == "" {
				return command.UsageErrorf("--offline compares two files: give the other one with --against")
			}

			progress := command.StartProgress(cmd, "counting what waits")
			defer progress.Stop()

			p, err := makePlan(cmd.Context(), a, f)
			if err != nil {
				return err
			}

			out := planPrinter{command.NewPrinter(cmd, f.form.Value == "json")}
			if err := out.plan(p); err != nil {
				return err
			}

			if f.exitCode && p.Changes {
				return command.ErrChanges
			}
			return nil
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&f.against, "against", "", "configuration `file` to compare with: the one that is in force")
	flags.BoolVar(&f.offline, "offline", false, "compare the files only, without the database")
	command.AddOutbox(cmd, &f.outbox)
	command.AddExitCode(cmd, &f.exitCode)
	command.AddScan(cmd, &f.scan, defaultPlanScan)
	f.form = command.AddFormat(cmd)

	return cmd
}

// Plan holds the changes of a new configuration.
type Plan struct {
	// Changes reports whether the fields below hold any change.
	Changes bool `json:"changes"`
	// Configuration is empty without a file to compare with.
	Configuration config.Difference `json:"configuration"`
	// Restart are the settings that a reload does not apply.
	Restart []string `json:"restart"`
	// Uncovered lists the patterns of removed routes that no other route covers.
	Uncovered []string `json:"uncovered"`
	// Moves are waiting events that would go elsewhere.
	Moves []planMove `json:"moves"`
	// Unrouted are waiting events without a route.
	Unrouted []planCount `json:"unrouted"`
	// Gone are deliveries, dead letters among them, to missing destinations, and
	// their positions in a stream.
	Gone []planCount `json:"gone"`
	// Begins are the destinations that are new to the stream, or come back to it.
	Begins []planBegin `json:"begins"`
	// Returns are deliveries that wait for destinations that come back.
	Returns []planCount `json:"returns"`
	// Conditions are those that waiting events meet, or do not.
	Conditions []planCondition `json:"conditions,omitempty"`
}

type planCount struct {
	EventType   string `json:"event_type"`
	Destination string `json:"destination,omitempty"`
	State       string `json:"state"`
	Count       int    `json:"count"`
	// AtLeast says that counting ended at the limit.
	AtLeast bool `json:"at_least,omitempty"`
}

type planMove struct {
	planCount
	From []string `json:"from"`
	To   []string `json:"to"`
}

func makePlan(ctx context.Context, a *command.App, f planFlags) (*Plan, error) {
	c, path, err := a.Load()
	if err != nil {
		return nil, err
	}

	p := &Plan{
		Configuration: config.Diff(c, c),
		Restart:       []string{},
		Uncovered:     []string{},
		Moves:         []planMove{},
		Unrouted:      []planCount{},
		Gone:          []planCount{},
		Begins:        []planBegin{},
		Returns:       []planCount{},
	}

	var old *config.Config
	if f.against != "" {
		old, err = a.LoadAt(f.against, "")
		if err != nil {
			return nil, err
		}
		p.compare(old, c)
	}
	if !f.offline {
		if err := p.askDatabase(ctx, f, old, c, path); err != nil {
			return nil, err
		}
	}

	p.Changes = p.Changes || !p.Configuration.Empty()
	return p, nil
}

// compare records the differences between two files.
func (p *Plan) compare(old, c *config.Config) {
	p.Configuration = config.Diff(old, c)
	p.Restart = append(p.Restart, daemon.NeedRestart(old, c)...)

	for _, r := range old.Routes {
		if !c.Covers(r.Match) {
			p.Uncovered = append(p.Uncovered, r.Match)
		}
	}
}

// askDatabase adds to the plan, from the database of the chosen outbox: the events that meet conditions, the begins of new
// destinations, and the waiting events. old is nil if unknown.
func (p *Plan) askDatabase(ctx context.Context, f planFlags, old, c *config.Config, path string) error {
	db := command.DatabaseFlags{Outbox: f.outbox, IsGiven: func() bool { return false }}
	c, err := db.Choose(ctx, c, path)
	if err != nil {
		return err
	}
	if old != nil && old.Outboxes.Used() {
		was := old.Outboxes.Outbox(f.outbox)
		if was == nil {
			was = &config.Outbox{}
		}
		old = old.For(was)
	}

	found, err := readTables(ctx, old, c, f.scan)
	if err != nil {
		return err
	}

	p.Conditions = found.conditions
	for _, b := range found.begins {
		p.Begins = append(p.Begins, b)
		p.Changes = p.Changes || b.Count+b.Waiting > 0
	}
	for _, w := range found.waiting {
		p.place(w, old, c)
	}
	return nil
}

// place records the new place of w. old is nil if unknown.
func (p *Plan) place(w store.WaitCount, old, c *config.Config) {
	count := planCount{EventType: w.EventType, Destination: w.Destination, State: w.State, Count: w.Count, AtLeast: w.More}

	if w.Destination != "" {
		comesBack := old != nil && !hasDestination(old, w.Destination)
		switch {
		case !hasDestination(c, w.Destination):
			p.Gone = append(p.Gone, count)
			p.Changes = p.Changes || old == nil || hasDestination(old, w.Destination)
		case comesBack && w.State != "dead" && w.State != "position":
			p.Returns = append(p.Returns, count)
		}
		return
	}

	if w.State == "retry" {
		count.State = "delayed" // not tried yet: it is routed when it is due
	}

	to := c.RouteOf(w.EventType)
	from := []string{}
	if old != nil {
		from = append(from, old.RouteOf(w.EventType)...)
	}
	differs := old == nil || !config.SameSet(from, to)

	switch {
	case len(to) == 0:
		p.Unrouted = append(p.Unrouted, count)
		p.Changes = p.Changes || differs
	case differs && (old != nil || w.State == "unrouted"):
		p.Changes = true
		p.Moves = append(p.Moves, planMove{planCount: count, From: from, To: to})
	}
}

func hasDestination(c *config.Config, name string) bool {
	return slices.ContainsFunc(c.Destinations, func(d config.Destination) bool { return d.Name == name })
}

// planTables holds the facts of the database about a new configuration.
type planTables struct {
	waiting    []store.WaitCount
	conditions []planCondition
	begins     []planBegin
}

// readTables reads the waiting events from the database of c, and evaluates its conditions for some of them. old is the
// configuration in force, nil if it is not known.
func readTables(ctx context.Context, old, c *config.Config, limit int) (found planTables, err error) {
	conn, err := outboxes.OpenTable(ctx, c, "plan")
	if err != nil {
		return found, err
	}
	defer store.Close(ctx, conn.Conn)

	found.waiting, err = store.CountWaiting(ctx, conn, limit)
	if err != nil {
		return found, err
	}
	slices.SortStableFunc(found.waiting, func(a, b store.WaitCount) int {
		return cmp.Or(
			cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.EventType, b.EventType),
			cmp.Compare(a.State, b.State),
		)
	})

	found.conditions, err = checkWaiting(ctx, conn, c, found.waiting)
	if err != nil {
		return found, err
	}

	found.begins, err = readBegins(ctx, conn, old, c, limit)

	return found, err
}
