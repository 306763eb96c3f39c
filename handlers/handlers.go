// Package handlers holds what all destinations have in common: settings ([TLS], [AWS], [Message] and [Secret]), the error about a
// field of a Config, and the options of kafka.New, email.New and the others.
//
//	h, err := email.New(email.Config{Host: "smtp.example.com", Username: "shop", Password: handlers.NewSecret(password), ...})
//	if mistake, ok := errors.AsType[*handlers.FieldError](err); ok {
//		return fmt.Errorf("%s is wrong: %w", mistake.Path, mistake.Err)
//	}
//	defer h.Close()
//	err = relay.Handle("order.*", notifyd.Destination{Name: "mail", Handler: h, Lane: email.DefaultLane()})
//
// The fields of a Config are also the settings of the destination in notifyd.yaml, under the names of their yaml tags. Their
// comments are the descriptions in docs/configuration.md: words in backticks are keys and values of notifyd.yaml. Where a
// comment calls a file relative to the configuration file, a Go program chooses the folder with [WithBaseDir]. The tags kind
// and enum have the values that a field may have, and unset has its default.
package handlers

import "log/slog"

// Option changes how a handler is made.
type Option func(*Options)

// Options are the merged options of one call. Handlers read them with [Apply].
type Options struct {
	// BaseDir is the directory that files which a Config names are relative to; "" is
	// the working directory.
	BaseDir string
	// Log receives messages that belong to no delivery. It is never nil.
	Log *slog.Logger
}

// Apply merges the options and fills in defaults.
func Apply(options []Option) Options {
	o := Options{Log: slog.New(slog.DiscardHandler)}
	for _, option := range options {
		option(&o)
	}
	return o
}

// WithBaseDir sets the directory that the files of a Config are relative to: certificates,
// keys, templates, credentials. The default is the working directory.
func WithBaseDir(dir string) Option { return func(o *Options) { o.BaseDir = dir } }

// WithLogger sets where the handler reports facts that no delivery shows, such as a
// lost or restored connection. By default nothing is logged. Most handlers never report
// anything.
func WithLogger(log *slog.Logger) Option { return func(o *Options) { o.Log = log } }
