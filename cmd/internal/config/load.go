package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// EnvPath is the environment variable that names the configuration file.
const EnvPath = "NOTIFYD_CONFIG"

// Load reads the configuration file at path. A url, if there is one, stands in for
// database.url and database.listen_url, which are not even expanded then. The error,
// if any, is an [*Error].
func Load(path, url string, registry Registry, lookup LookupEnv) (*Config, error) {
	return load(path, registry, lookup, part{url: url})
}

// LoadDatabase is [Load] for commands that work on the tables only: it reads the
// keys version, database, retention and outboxes, and ignores the rest.
func LoadDatabase(path, url string, lookup LookupEnv) (*Config, error) {
	return load(path, nil, lookup, databasePart(url))
}

// LoadRoutes is [Load] for commands that deliver nothing: it reads what [LoadDatabase]
// does, routes and admin, and of the destinations their names, types, order and on_dead.
// Their Settings are nil, so that such a command needs no secrets.
func LoadRoutes(path, url string, lookup LookupEnv) (*Config, error) {
	return load(path, nil, lookup, routesPart(url))
}

func load(path string, registry Registry, lookup LookupEnv, p part) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &Error{[]Mistake{{File: path, Message: "cannot be read: " + reason(err)}}}
	}
	return parse(path, data, registry, lookup, p)
}

// reason returns err without the path, which is already in the message.
func reason(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}

// Find returns the path of the configuration file: flag if it is not empty, else
// $NOTIFYD_CONFIG if set, else the first that exists of ./notifyd.yaml,
// $XDG_CONFIG_HOME/notifyd/config.yaml and /etc/notifyd/config.yaml. The error,
// an [*Error], lists the paths tried.
func Find(flag string, lookup LookupEnv) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if path, _ := lookup(EnvPath); path != "" {
		return path, nil
	}

	tried := places(lookup)
	for _, path := range tried {
		// Load reports every error but a missing file, with the reason.
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}

	return "", &Error{[]Mistake{{
		File: tried[0],
		Message: "no configuration file: tried --config, $" + EnvPath + ", " + strings.Join(tried, ", ") +
			`: "notifyd config init" writes one to start from`,
	}}}
}

// places lists the default paths of the file.
func places(lookup LookupEnv) []string {
	all := []string{"notifyd.yaml"}
	home, ok := lookup("XDG_CONFIG_HOME")
	if !ok || home == "" {
		if user, ok := lookup("HOME"); ok && user != "" {
			home = filepath.Join(user, ".config")
		}
	}

	if home != "" {
		all = append(all, filepath.Join(home, "notifyd", "config.yaml"))
	}
	return append(all, filepath.Join("/etc", "notifyd", "config.yaml"))
}
