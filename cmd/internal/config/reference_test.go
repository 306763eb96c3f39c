package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers"
)

// described has a field of every kind that the reference describes.
type described struct {
	Host    string            `yaml:"host" jsonschema_description:"Name of the <server>, as 'a|b' or *." unset:"required"`
	Port    int               `yaml:"port" jsonschema:"minimum=1,maximum=65535" jsonschema_description:"TCP port." unset:"25; 465 with 'tls: {}'"`
	Retries uint8             `yaml:"retries" jsonschema:"minimum=2" jsonschema_description:"The server's limit."`
	Ratio   float64           `yaml:"ratio" jsonschema:"maximum=0.5" jsonschema_description:"Ratio."`
	Secret  handlers.Secret   `yaml:"password" jsonschema_description:"Password."`
	Keys    []handlers.Secret `yaml:"keys" jsonschema_description:"Keys."`
	Subject string            `yaml:"subject" jsonschema:"required" jsonschema_description:"Subject." kind:"template"`
	Mode    string            `yaml:"mode" jsonschema:"enum=fast,enum=safe" jsonschema_description:"Mode."`
	Modes   []string          `yaml:"modes" jsonschema:"enum=fast,enum=safe" jsonschema_description:"Modes."`
	Wait    time.Duration     `yaml:"wait" jsonschema_description:"Wait."`
	Never   time.Duration     `yaml:"never" jsonschema_description:"Never."`
	Dry     *bool             `yaml:"dry" jsonschema_description:"Dry."`
	Wet     bool              `yaml:"wet" jsonschema_description:"Wet."`
	Headers map[string]string `yaml:"headers" jsonschema_description:"Headers."`
	Level   upper             `yaml:"level" jsonschema_description:"Level."`
	Any     any               `yaml:"any" jsonschema_description:"Anything."`
	TLS     *describedTLS     `yaml:"tls" jsonschema_description:"TLS."`
	Limits  []describedTLS    `yaml:"limits" jsonschema_description:"Limits."`
	Hidden  []describedTLS    `yaml:"hidden" jsonschema_description:"Hidden." kind:"list, as 'limits'"`
	Batch   int               `yaml:"batch" jsonschema_description:"Batch."`
	None    string            `yaml:"-"`
}

type describedTLS struct {
	Name string `yaml:"name" jsonschema_description:"Name." unset:"'host'"`
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
	once, err := config.Reference([]byte(page()), describedRegistry())
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
	twice, err := config.Reference(once, describedRegistry())
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
	Secret handlers.Secret `yaml:"secret" jsonschema_description:"Secret."`
}

func (*unprintable) Validate() error { return nil }

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
		"no description": {page(), &undescribed{}, "type: sample: host: the field needs a tag jsonschema_description"},
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
			out, err := config.Reference([]byte(c.page), registry)
			if out != nil || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "swordfish") {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}

// TestSchemaDescribes: an editor shows what the tables of the reference have in columns of their own.
func TestSchemaDescribes(t *testing.T) {
	t.Parallel()
	data, err := config.Schema(describedRegistry())
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
