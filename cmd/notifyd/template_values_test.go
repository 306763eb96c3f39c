package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// templateValue is what a setting makes of the value of an event, as `notifyd template test` shows the message.
type templateValue struct {
	Settings string `yaml:"settings"` // of a destination, as in a flow mapping
	Setting  string `yaml:"setting"`  // the template among them, as the pages name it
	Value    string `yaml:"value"`
	Want     string `yaml:"want"` // in the message; behind "!" in the error of a dead letter
}

// TestTemplateValues: at each destination a value of an event stays in its place, or the event is refused. docs/templates.md
// has a row for each of the settings.
func TestTemplateValues(t *testing.T) {
	t.Parallel()
	tested := make(map[string]bool)
	for kind, all := range typeCases(t) {
		for _, c := range all.Templates {
			tested[kind+" "+c.Setting] = true
			c.check(t, kind)
		}
	}

	page, err := os.ReadFile("../../docs/templates.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Values stay in their place")
	table, _, _ = strings.Cut(table, "\n## ")
	reference, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?s)<!-- settings: type: (\w+) -->(.*?)<!-- end of settings -->`)
	row := regexp.MustCompile("(?m)^\\| `([\\w.[\\]]+)` \\| (?:template|list of templates|mapping of templates) \\|")
	found := 0
	for _, kind := range section.FindAllStringSubmatch(string(reference), -1) {
		for _, setting := range row.FindAllStringSubmatch(kind[2], -1) {
			found++
			if !tested[kind[1]+" "+setting[1]] {
				t.Errorf("%s of %s is a template without a row in testdata/destinations", setting[1], kind[1])
			}
			own := testenv.ReadFile(t, root+"docs/destinations/"+kind[1]+".md")
			if row := "| `" + setting[1] + "` |"; !strings.Contains(table, "`"+setting[1]+"`") && !strings.Contains(own, row) {
				t.Errorf("neither docs/templates.md nor the page has a row for what %s of %s makes of a value", setting[1], kind[1])
			}
		}
	}
	if found < len(tested) {
		t.Errorf("%d templates in docs/configuration.md, %d are tested", found, len(tested))
	}
}

// check asks a destination of the type for the message.
func (c templateValue) check(t *testing.T, kind string) {
	t.Helper()
	payload, err := json.Marshal(map[string]string{"v": c.Value})
	if err != nil {
		t.Fatal(err)
	}
	event := filepath.Join(t.TempDir(), "event.json")
	if err := os.WriteFile(event, []byte(`{"id": 7, "event_type": "order.placed", "payload": `+string(payload)+`}`), 0o600); err != nil {
		t.Fatal(err)
	}

	config := "version: 1\ndatabase: {url: 'postgres://nowhere.invalid/x'}\ndestinations:\n  d: {type: " + kind + ", " + c.Settings + "}\nroutes: [{match: '*', to: d}]\n"
	r := invoke(t, "template", "test", "--destination", "d", "--event", event, "-c", file(t, config))
	code, shown := command.ExitOK, r.stdout
	want, refused := strings.CutPrefix(c.Want, "!")
	if refused {
		code, shown = command.ExitFailure, r.stderr
	}
	if r.code != code || !strings.Contains(shown, want) {
		t.Errorf("%s: %s, %s of %q: %d: %s%s, want %q", kind, c.Settings, c.Setting, c.Value, r.code, r.stdout, r.stderr, want)
	}
}

// TestReportedAnswerMentionsNoOne: what a receiver answers to an event becomes the report of its dead letter, and is shown in the
// operators' channel as text.
func TestReportedAnswerMentionsNoOne(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	posted := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/partner" {
			http.Error(w, "<!channel> see <https://evil.example|the runbook>", http.StatusUnprocessableEntity)
			return
		}
		var message struct{ Text string }
		if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
			t.Error(err)
		}
		posted <- message.Text
		_, _ = w.Write([]byte("ok"))
	}))
	t.Cleanup(server.Close)
	for _, mode := range []string{"queue", "stream"} {
		url := databaseOf(t, mode)
		startReloadable(t, nil, strings.NewReplacer("DB", url, "URL", server.URL).Replace(`version: 1
database: {url: 'DB'}
destinations:
  partner: {type: webhook, url: URL/partner, on_dead: {to: team}}
  team:
    type: slack
    webhook_url: URL/team
    text: "<!here> {{ with .Event.DeadLetter }}{{ .Destination }}: {{ .Error }}{{ end }}{{ range $key, $value := .Payload }} {{ $key }}{{ end }}"
routes: [{match: '*', to: partner}]
`))
		publishTo(t, url, "order.placed", `{"<!everyone>": 1}`)
		got := testenv.Receive(t, patience, "the report", posted)
		if strings.Count(got, "<") != 1 || !strings.HasPrefix(got, "<!here> partner: ") ||
			!strings.Contains(got, "&lt;!channel&gt; see &lt;https://evil.example|the runbook&gt;") || !strings.HasSuffix(got, " &lt;!everyone&gt;") {
			t.Errorf("%s: %s", mode, got)
		}
	}
}
