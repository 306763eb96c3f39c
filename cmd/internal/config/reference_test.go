package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers"
)

// described has a field of every kind that the reference describes; withTests has the descriptions.
type described struct {
	Host    string            `yaml:"host" unset:"required"`
	Port    int               `yaml:"port" jsonschema:"minimum=1,maximum=65535" unset:"25; 465 with 'tls: {}'"`
	Retries uint8             `yaml:"retries" jsonschema:"minimum=2"`
	Ratio   float64           `yaml:"ratio" jsonschema:"maximum=0.5"`
	Secret  handlers.Secret   `yaml:"password"`
	Keys    []handlers.Secret `yaml:"keys"`
	Subject string            `yaml:"subject" jsonschema:"required" kind:"template"`
	Mode    string            `yaml:"mode" enum:"fast,safe"`
	Modes   []string          `yaml:"modes" enum:"fast,safe"`
	Wait    time.Duration     `yaml:"wait"`
	Never   time.Duration     `yaml:"never"`
	Dry     *bool             `yaml:"dry"`
	Wet     bool              `yaml:"wet"`
	Headers map[string]string `yaml:"headers"`
	Level   upper             `yaml:"level"`
	Any     any               `yaml:"any"`
	TLS     *describedTLS     `yaml:"tls"`
	Limits  []describedTLS    `yaml:"limits"`
	Hidden  []describedTLS    `yaml:"hidden" kind:"list, as 'limits'"`
	Batch   int               `yaml:"batch"`
	None    string            `yaml:"-"`
}

type describedTLS struct {
	Name string `yaml:"name" unset:"'host'"`
}

func (*described) Validate() error { return nil }

func (d *described) Effective() config.Settings {
	c := *d
	c.Mode, c.Wait, c.Dry = "safe", 36*time.Hour, new(true)
	return &c
}

const describedTable = "| Key | Type | Default | Meaning |\n" + `|---|---|---|---|
| ~host~ | text | required | Name of the &lt;server>, as ~a\|b~ or \*. |
| ~port~ | 1 to 65535 | 25; 465 with ~tls: {}~ | TCP port. |
| ~retries~ | number, at least 2 | 3 | The server's limit. |
| ~ratio~ | number, at most 0.5 | 0.25 | Ratio. |
| ~password~ | secret | none | Password. |
| ~keys~ | list of secrets | none | Keys. |
| ~subject~ | template | required | Subject. |
| ~mode~ | ~fast~, ~safe~ | ~safe~ | Mode. |
| ~modes~ | list of ~fast~, ~safe~ | none | Modes. |
| ~wait~ | duration | ~1d12h~ | Wait. |
| ~never~ | duration | ~0~ | Never. |
| ~dry~ | boolean | ~true~ | Dry. |
| ~wet~ | boolean | ~false~ | Wet. |
| ~headers~ | mapping | none | Headers. |
| ~level~ | text | none | Level. |
| ~any~ | anything | none | Anything. |
| ~tls~ | mapping | none | TLS. |
| ~tls.name~ | text | ~host~ | Name. |
| ~limits~ | list of mappings | none | Limits. |
| ~limits[].name~ | text | ~host~ | Name. |
| ~hidden~ | list, as ~limits~ | none | Hidden. |
| ~batch~ | number | 100 | Batch. |
`

func describedRegistry() config.Registry {
	return config.Registry{"sample": func() config.Settings { return &described{Retries: 3, Ratio: 0.25} }}
}

// page has a marker for each table, and a text around each.
func page() string {
	text := "# Settings\n"
	for _, name := range []string{"top level", "database", "relay", "retention", "log", "destinations.NAME", "type: sample", "routes", "admin", "alerts", "outboxes"} {
		text += "\n## " + name + "\n\n<!-- settings: " + name + " -->\nold\n<!-- end of settings -->\nmore\n"
	}
	return text
}

// TestReference: each table stands between its markers, the text around them stays, and a second time changes nothing.
func TestReference(t *testing.T) {
	t.Parallel()
	once, err := config.Reference([]byte(page()), describedRegistry(), withTests(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<!-- settings: type: sample -->\n\n" + strings.ReplaceAll(describedTable, "~", "`") + "\n<!-- end of settings -->\nmore\n",
		"| `version` | `1` | required | ",
		"| `relay.lock_budget` | duration, `1ms` to `2s` | `100ms` | ",
		"| `type` | `sample` | required | ",
		"| `backoff.multiplier` | 1 to 100 | 2 | ",
		"| `routes[].to` | list of names | required | ",
		"| `admin.tls.cert_file` | path | none | ",
		"| `outboxes.list[].name` | text | required | ",
	} {
		if !strings.Contains(string(once), want) {
			t.Errorf("%s is missing in\n%s", want, once)
		}
	}
	if strings.Contains(string(once), "old\n") || strings.Count(string(once), "\nmore\n") != strings.Count(page(), "\nmore\n") {
		t.Errorf("the text around the tables changed:\n%s", once)
	}
	twice, err := config.Reference(once, describedRegistry(), withTests(t))
	if err != nil || string(twice) != string(once) {
		t.Errorf("the second time writes, %v\n%s", err, twice)
	}
}

// undescribed and unprintable are settings that the reference refuses.
type undescribed struct {
	Host string `yaml:"host"`
}

func (*undescribed) Validate() error { return nil }

type unprintable struct {
	Secret handlers.Secret `yaml:"secret"`
}

func (*unprintable) Validate() error { return nil }

// withTests returns the descriptions of all settings, and those of the types above.
func withTests(t *testing.T) config.Descriptions {
	t.Helper()
	all, err := config.AllDescriptions()
	if err != nil {
		t.Fatal(err)
	}

	all["cmd/internal/config_test"] = map[string]string{
		"described.Host":     "Name of the <server>, as `a|b` or *.",
		"described.Port":     "TCP port.",
		"described.Retries":  "The server's limit.",
		"described.Ratio":    "Ratio.",
		"described.Secret":   "Password.",
		"described.Keys":     "Keys.",
		"described.Subject":  "Subject.",
		"described.Mode":     "Mode.",
		"described.Modes":    "Modes.",
		"described.Wait":     "Wait.",
		"described.Never":    "Never.",
		"described.Dry":      "Dry.",
		"described.Wet":      "Wet.",
		"described.Headers":  "Headers.",
		"described.Level":    "Level.",
		"described.Any":      "Anything.",
		"described.TLS":      "TLS.",
		"described.Limits":   "Limits.",
		"described.Hidden":   "Hidden.",
		"described.Batch":    "Batch.",
		"describedTLS.Name":  "Name.",
		"unprintable.Secret": "Secret.",
	}
	return all
}

// TestReferenceOfNewType: a type without a section gets one behind those of the others.
func TestReferenceOfNewType(t *testing.T) {
	t.Parallel()
	registry := describedRegistry()
	registry["pigeon"] = registry["sample"]
	got, err := config.Reference([]byte(strings.ReplaceAll(page(), "\n## ", "\n### ")), registry, withTests(t))
	if err != nil {
		t.Fatal(err)
	}

	_, rest, _ := strings.Cut(string(got), "\n### type: sample\n")
	_, section, found := strings.Cut(rest, "\n### type: pigeon\n\n[destinations/pigeon.md](destinations/pigeon.md) explains ")
	section, _, follows := strings.Cut(section, "\n### routes\n")
	hasTable := strings.Contains(section, "<!-- settings: type: pigeon -->\n\n| Key |")
	if !found || !follows || !hasTable {
		t.Errorf("the page is\n%s", got)
	}

	again, err := config.Reference(got, registry, withTests(t))
	if err != nil || string(again) != string(got) {
		t.Errorf("a second time it is\n%s\n%v", again, err)
	}
}

func TestReferenceRefuses(t *testing.T) {
	t.Parallel()
	table := func(name string) string {
		return "<!-- settings: " + name + " -->\n<!-- end of settings -->\n"
	}
	cases := map[string]struct {
		page     string
		settings config.Settings
		want     string
	}{
		"no marker":      {strings.ReplaceAll(page(), "settings: relay", "setting: relay"), nil, `no table of "relay": add the lines <!-- settings: relay --> and <!-- end of settings -->`},
		"unknown marker": {page() + table("type: sampel"), nil, "<!-- settings: type: sampel -->: there is no such table: remove it"},
		"two markers":    {page() + table("relay"), nil, "<!-- settings: relay -->: is there twice: remove one"},
		"no end":         {strings.Replace(page(), "<!-- end of settings -->", "", 1), nil, "<!-- settings: top level -->: has no end: add the line <!-- end of settings -->"},
		"no description": {page(), &undescribed{}, "type: sample: host: the field needs a doc comment"},
		"a secret":       {page(), &unprintable{handlers.NewSecret("swordfish")}, "type: sample: secret: the field needs a tag unset"},
		"a collision":    {page(), &urgentSettings{}, "type: sample: priority: every destination has a setting of this name"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := describedRegistry()
			if c.settings != nil {
				registry["sample"] = func() config.Settings { return c.settings }
			}
			out, err := config.Reference([]byte(c.page), registry, withTests(t))
			if out != nil || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "swordfish") {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}

// TestSchemaDescribes: an editor shows what the tables of the reference have in columns of their own.
func TestSchemaDescribes(t *testing.T) {
	t.Parallel()
	data, err := config.Schema(describedRegistry(), withTests(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"description": "TCP port. Default: 25; 465 with ` + "`tls: {}`" + `."`,
		`"description": "Name of the \u003cserver\u003e, as ` + "`a|b`" + ` or *. Required."`,
		`"description": "Password. A secret: best as ${env:NAME} or ${file:PATH}."`,
		`"default": "safe"`, `"default": "1d12h"`, `"default": true`, `"default": 3`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is missing in\n%s", want, data)
		}
	}
}
