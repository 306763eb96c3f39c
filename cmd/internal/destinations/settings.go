package destinations

import (
	"errors"
	"io"
	"reflect"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// Settings are the settings of a destination: those of its handler, C, and L, which repeats fields of [delivery.Lane] with
// the bounds and descriptions of the type.
type Settings[C, L any] struct {
	Config C `yaml:",inline"`
	Lane   L `yaml:",inline"`

	traits traits[C]
	create func(C, ...handlers.Option) (delivery.Handler, error)
}

// traits are what distinguishes a type, apart from its settings.
type traits[C any] struct {
	baseDir string           // the files of a Config are relative to it
	lane    delivery.Lane    // the defaults of L
	within  string           // names the settings that Within of the Config is made of
	system  string           // the messaging.system of spans, "" if the semantic conventions have none
	servers func(C) []string // the addresses of a Config, nil for services of a cloud
}

// typeOf returns a type whose handlers create makes. The fields of the lane have their defaults from t.
func typeOf[C, L any, H delivery.Handler](create func(C, ...handlers.Option) (H, error), t traits[C], lane L) config.Type {
	return func() config.Settings {
		s := newSettings(create, t, lane)
		return &s
	}
}

func newSettings[C, L any, H delivery.Handler](create func(C, ...handlers.Option) (H, error), t traits[C], lane L) Settings[C, L] {
	for f, value := range reflect.ValueOf(&lane).Elem().Fields() {
		value.Set(reflect.ValueOf(t.lane).FieldByName(f.Name))
	}

	return Settings[C, L]{Lane: lane, traits: t, create: func(cfg C, options ...handlers.Option) (delivery.Handler, error) {
		h, err := create(cfg, options...)
		if err != nil {
			return nil, err // and no pointer that is nil
		}
		return h, nil
	}}
}

// Validate implements config.Settings.
func (s *Settings[C, L]) Validate() error { return errors.Join(s.checkTimeout(), s.tryOpen()) }

// checkTimeout wants a timeout with room for the handler's own timeouts: faults of the destination would count as
// attempts otherwise.
func (s *Settings[C, L]) checkTimeout() error {
	cfg, isBounded := any(s.Config).(interface{ Within() time.Duration })
	if !isBounded {
		return nil
	}

	within := cfg.Within()
	timeout := time.Duration(reflect.ValueOf(s.Lane).FieldByName("Timeout").Int())
	if timeout > within {
		return nil
	}
	return field.Errorf("timeout", "must be longer than %s (%v), such as %v", s.traits.within, within, 2*within)
}

// tryOpen makes the handler, which reads the files that it needs, and closes it.
func (s *Settings[C, L]) tryOpen() error {
	h, err := s.open()
	if err != nil {
		return err
	}
	if closer, ok := h.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// Effective implements config.Effective.
func (s *Settings[C, L]) Effective() config.Settings {
	c := *s
	if cfg, has := any(s.Config).(interface{ WithDefaults() C }); has {
		c.Config = cfg.WithDefaults()
	}
	return &c
}

func (s *Settings[C, L]) open(options ...handlers.Option) (delivery.Handler, error) {
	return s.create(s.Config, append(options, handlers.WithBaseDir(s.traits.baseDir))...)
}

func (s *Settings[C, L]) servers() []string {
	if s.traits.servers == nil {
		return nil
	}
	return s.traits.servers(s.Config)
}

func (s *Settings[C, L]) messagingSystem() string { return s.traits.system }
