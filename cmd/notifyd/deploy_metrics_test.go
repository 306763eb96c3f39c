//go:build testall

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe/metrics"
)

// known returns the names of all metrics that a daemon exports.
func known(t *testing.T) (names []string) {
	t.Helper()
	described := make(chan *prometheus.Desc, 1000)
	for _, c := range append(daemon.Metrics(), metrics.NewCollector(t.Context(), nil), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) {
		c.Describe(described)
	}
	close(described)
	for d := range described {
		names = append(names, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1])
	}
	return append(names, "up") // Prometheus makes it
}

// mustExist checks that an expression asks for metrics that are exported, and
// of ours for those that are documented.
func mustExist(t *testing.T, where, expr string, exported []string, page string) {
	t.Helper()
	found := false
	for _, name := range regexp.MustCompile(`\b(?:(?:notifyd|process|go)_\w+|up)\b`).FindAllString(expr, -1) {
		family := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && slices.Contains(exported, base) {
				family = base
			}
		}
		if found = true; !slices.Contains(exported, family) || strings.HasPrefix(family, "notifyd_") && !strings.Contains(page, "| `"+family+"` |") {
			t.Errorf("%s: %s is not exported, or not documented", where, name)
		}
	}
	if !found {
		t.Errorf("%s: %q asks for no metric", where, expr)
	}
}

type ruleFile struct {
	Groups []struct {
		Name  string     `json:"name"  yaml:"name"`
		Rules []ruleSpec `json:"rules" yaml:"rules"`
	} `json:"groups" yaml:"groups"`
}

type ruleSpec struct {
	Alert       string            `json:"alert,omitempty"  yaml:"alert"`
	Record      string            `json:"record,omitempty" yaml:"-"`
	Expr        string            `json:"expr"             yaml:"expr"`
	Annotations map[string]string `json:"-"                yaml:"annotations"`
}

// TestDeployAlerts: every alert asks for what is exported, is tested by
// promtool, and has its entry in the runbook.
func TestDeployAlerts(t *testing.T) {
	t.Parallel()
	var rules ruleFile
	if err := yaml.Unmarshal([]byte(testenv.ReadFile(t, deployDir+"/prometheus/rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	exported, page, runbook := known(t), testenv.ReadFile(t, "../../docs/metrics.md"), testenv.ReadFile(t, "../../docs/runbook.md")
	tested := testenv.ReadFile(t, deployDir+"/prometheus/rules_test.yaml")
	var alerts []string
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			alerts = append(alerts, r.Alert)
			mustExist(t, r.Alert, r.Expr, exported, page)
			entry := "docs/runbook.md#" + strings.ToLower(r.Alert)
			if r.Annotations["runbook"] != entry || r.Annotations["summary"] == "" {
				t.Errorf("%s: annotations %v, want the runbook at %s", r.Alert, r.Annotations, entry)
			}
			if !strings.Contains(tested, "alertname: "+r.Alert+"\n        exp_alerts:\n") || !strings.Contains(tested, "alertname: "+r.Alert+"\n        exp_alerts: []\n") {
				t.Errorf("%s: rules_test.yaml does not show it ringing and silent", r.Alert)
			}
		}
	}
	entries := names(`(?m)^## (Notifyd\w+)$`, runbook)
	slices.Sort(alerts)
	if len(alerts) == 0 || !slices.Equal(alerts, entries) {
		t.Errorf("alerts:\n%v\nin the runbook:\n%v", alerts, entries)
	}
	for _, m := range regexp.MustCompile(`Notifyd\w+`).FindAllString(testenv.ReadFile(t, deployDir+"/prometheus/inhibit_rules.yaml"), -1) {
		if !slices.Contains(alerts, m) {
			t.Errorf("inhibit_rules.yaml names %s, which is no alert", m)
		}
	}
	promtool(t, "check", "rules", deployDir+"/prometheus/rules.yaml")
	promtool(t, "test", "rules", deployDir+"/prometheus/rules_test.yaml")
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), testenv.Program(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

// TestDeployDashboard: every panel asks for what is exported, in PromQL that
// promtool can parse, and every metric of ours is in some panel.
func TestDeployDashboard(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Title  string
		Panels []struct {
			ID                 int
			Title, Description string
			GridPos            struct{ X, Y, W, H int }
			Targets            []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(testenv.ReadFile(t, deployDir+"/grafana/notifyd.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	exported, page, all := known(t), testenv.ReadFile(t, "../../docs/metrics.md"), ""
	var rules ruleFile
	rules.Groups = append(rules.Groups, struct {
		Name  string     `json:"name"  yaml:"name"`
		Rules []ruleSpec `json:"rules" yaml:"rules"`
	}{Name: "panels"})
	taken := make(map[[2]int]string)
	for _, p := range dashboard.Panels {
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q says nothing", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			mustExist(t, p.Title, target.Expr, exported, page)
			all += target.Expr + "\n"
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$destination", ".*").Replace(target.Expr)
			rules.Groups[0].Rules = append(rules.Groups[0].Rules, ruleSpec{Record: fmt.Sprintf("panel:expr:%d", len(rules.Groups[0].Rules)), Expr: expr})
		}
	}
	data, err := json.Marshal(rules) // which is YAML too
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", path)
	for _, name := range exported {
		if strings.HasPrefix(name, "notifyd_") && !regexp.MustCompile(name+`(_bucket)?\b`).MatchString(all) {
			t.Errorf("no panel shows %s: add one, and say in its description what it tells", name)
		}
	}
}

// TestRunbook runs the SQL and the commands of the runbook as the relay, over a dead
// letter.
func TestRunbook(t *testing.T) {
	t.Parallel()
	owner := database(t)
	relay, asRelay := login(t, owner, "relay")
	execute(t, owner, invoke(t, "migrate", "--print-grants", "--relay", relay).stdout)
	execute(t, owner, `INSERT INTO outbox_events (event_type, payload, state, processed_at) VALUES ('order.placed', '1', 'done', now());
		INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, last_error) VALUES (1, 'mail', 'order.placed', 'dead', 20, 'no')`)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(testenv.ReadFile(t, "../../docs/runbook.md"), -1)
	if len(blocks) < 5 {
		t.Fatalf("%d blocks of SQL", len(blocks))
	}
	conn, err := pgx.Connect(t.Context(), asRelay)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, b := range blocks {
		if _, err := conn.Exec(t.Context(), b[1]); err != nil {
			t.Errorf("%v in\n%s", err, b[1])
		}
	}
	commands := regexp.MustCompile(`(?m)^\$ notifyd (dlq \w+ --destination mail) --reason "([^"]+)" --yes$`).FindAllStringSubmatch(testenv.ReadFile(t, "../../docs/runbook.md"), -1)
	if len(commands) != 2 {
		t.Fatalf("%d commands", len(commands))
	}
	for i, want := range []string{"replayed 1 of 1", "discarded 1 of 1"} {
		execute(t, owner, "UPDATE outbox_deliveries SET state = 'dead'")
		args := append(strings.Fields(commands[i][1]), "--reason", commands[i][2], "--yes", "--database-url", asRelay)
		if got := invoke(t, args...); got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: %+v", commands[i][0], got)
		}
	}
}
