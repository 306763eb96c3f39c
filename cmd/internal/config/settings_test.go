package config_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// mailSettings has one field of every kind that settings may have.
type mailSettings struct {
	Host     string                     `yaml:"host" jsonschema:"required"`
	Port     int                        `yaml:"port" jsonschema:"minimum=1,maximum=65535"`
	Password handlers.Secret            `yaml:"password"`
	From     string                     `yaml:"from"`
	To       []string                   `yaml:"to"`
	Wait     time.Duration              `yaml:"wait"`
	TLS      tlsSettings                `yaml:"tls"`
	Headers  map[string]string          `yaml:"headers"`
	Tokens   map[string]handlers.Secret `yaml:"tokens"`
	Ratio    float64                    `yaml:"ratio"`
	Dry      *bool                      `yaml:"dry"`
	Extra    any                        `yaml:"extra"`
	Small    uint8                      `yaml:"small"`
	Level    upper                      `yaml:"level"`
	Timeout  time.Duration              `yaml:"timeout"`
	Ignored  string                     `yaml:"-"`
}

type tlsSettings struct {
	Mode   string      `yaml:"mode" enum:"none,starttls,tls"`
	Limits []limitRule `yaml:"limits"`
}

type limitRule struct {
	Name string `yaml:"name" jsonschema:"required"`
	Max  int    `yaml:"max"`
}

// upper is a text type that decodes itself.
type upper string

func (u *upper) UnmarshalText(b []byte) error {
	if len(b) > 5 {
		return errors.New("the level " + string(b) + " is too long")
	}
	*u = upper(strings.ToUpper(string(b)))
	return nil
}

func (s *mailSettings) Validate() error {
	var errs []error
	if s.From != "" && !strings.Contains(s.From, "@") {
		errs = append(errs, field.Errorf("from", "%q is not an address", s.From))
	}
	if s.TLS.Mode == "none" && s.Password.Reveal() != "" {
		errs = append(errs, field.Errorf("password", "a password needs tls: %s", s.Password.Reveal()))
	}
	for k, v := range s.Headers {
		if strings.Contains(v, "\n") {
			errs = append(errs, field.Errorf("headers."+k, "has a line break"))
		}
	}
	if len(s.To) > 3 {
		errs = append(errs, field.Errorf("to.3", "three are enough"))
	}
	if len(s.To) == 0 {
		errs = append(errs, field.Errorf("to", "is required"))
	}
	return errors.Join(errs...)
}

type logSettings struct {
	Format string `yaml:"format" enum:"json,text"`
}

func (logSettings) Validate() error { return nil }

func registry() config.Registry {
	return config.Registry{
		"email": func() config.Settings {
			return &mailSettings{Port: 25, Timeout: time.Minute, TLS: tlsSettings{Mode: "starttls"}}
		},
		"log": func() config.Settings { return &logSettings{Format: "json"} },
	}
}

// env is a lookup with the given variables: "NAME=value".
func env(vars ...string) config.LookupEnv {
	return func(name string) (string, bool) {
		for _, v := range vars {
			if k, value, _ := strings.Cut(v, "="); k == name {
				return value, true
			}
		}
		return "", false
	}
}

func parse(t *testing.T, data string, vars ...string) (*config.Config, error) {
	t.Helper()
	return config.Parse("notifyd.yaml", []byte(data), registry(), env(vars...))
}

func mustParse(t *testing.T, data string, vars ...string) *config.Config {
	t.Helper()
	c, err := parse(t, data, vars...)
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return c
}

func write(t *testing.T, name, data string) string {
	t.Helper()
	return testenv.WriteFile(t, filepath.Join(t.TempDir(), name), data)
}
