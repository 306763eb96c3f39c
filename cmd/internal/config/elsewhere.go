package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// otherTypes are the names that people give to destination types.
func otherTypes() map[string]string {
	return map[string]string{
		"smtp": "email", "mail": "email", "sendmail": "email",
		"http": "webhook", "https": "webhook", "url": "webhook",
		"amqp": "rabbitmq", "rabbit": "rabbitmq",
		"postgresql": "postgres",
		"gcp":        "pubsub", "googlepubsub": "pubsub",
		"stdout": "log", "console": "log",
		"redpanda":  "kafka",
		"jetstream": "nats",
		"valkey":    "redis",
	}
}

// otherKeys are keys of other tools, with their names here.
func otherKeys() map[string]string {
	return map[string]string{
		"retries":     "max_attempts and retry of a destination",
		"retry":       "max_attempts and retry of a destination",
		"attempts":    "max_attempts of a destination",
		"workers":     "concurrency of a destination",
		"mode":        "notifyd migrate --mode: it is a property of the table",
		"queue":       "notifyd migrate --mode: it is a property of the table",
		"port":        "admin.listen, an address with a port",
		"metrics":     "admin.listen, which serves /metrics",
		"event_types": "match of a route",
	}
}

// elsewhere returns the cure of an unknown key that belongs to another part of the file, or "".
func elsewhere(key, path string) string {
	isTop := !strings.Contains(path, ".")
	isDestination := strings.HasPrefix(path, "destinations.") && strings.Count(path, ".") == 1
	if isTop || isDestination {
		if found := sectionsWith(key); len(found) > 0 {
			return ": it belongs to " + strings.Join(found, " or ")
		}
	}

	if other, ok := otherKeys()[key]; ok {
		return ": write " + other
	}
	return ""
}

// sectionsWith returns the sections of the file that have a key, and the destinations if they do.
func sectionsWith(key string) (found []string) {
	has := func(v reflect.Value) bool {
		return slices.ContainsFunc(settingsOf(v), func(s setting) bool { return s.name == key })
	}

	for _, section := range settingsOf(reflect.ValueOf(defaults()).Elem()) {
		if v := section.targets[0]; v.Kind() == reflect.Struct && has(v) {
			found = append(found, section.name)
		}
	}

	lane := defaultLane()
	if has(reflect.ValueOf(&lane).Elem()) {
		found = append(found, "a destination")
	}

	return found
}

// typeHint returns the cure of an unknown destination type.
func typeHint(word string, known []string) string {
	if name := otherTypes()[strings.ToLower(word)]; slices.Contains(known, name) {
		return fmt.Sprintf(" (did you mean %q?)", name)
	}
	return suggest(word, known)
}
