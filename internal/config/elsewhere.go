package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// otherTypes are the names that people give to destination types.
func otherTypes() map[string]string {
	return map[string]string{
		"smtp": "email", "mail": "email", "sendmail": "email", "http": "webhook", "https": "webhook", "url": "webhook", "amqp": "rabbitmq", "rabbit": "rabbitmq",
		"postgresql": "postgres", "gcp": "pubsub", "googlepubsub": "pubsub", "stdout": "log", "console": "log", "redpanda": "kafka", "jetstream": "nats", "valkey": "redis",
	}
}

// otherKeys are keys of other tools, with what stands in for them here.
func otherKeys() map[string]string {
	return map[string]string{
		"retries": "max_attempts and backoff of a destination", "retry": "max_attempts and backoff of a destination", "attempts": "max_attempts of a destination",
		"workers": "concurrency of a destination", "mode": "notifyd migrate --mode: it is a property of the table", "queue": "notifyd migrate --mode: it is a property of the table",
		"port": "admin.listen, an address with a port", "metrics": "admin.listen, which serves /metrics", "event_types": "match of a route",
	}
}

// elsewhere returns the cure of an unknown key that belongs to another part of the file, "" if there is none.
func elsewhere(key, path string) string {
	if !strings.Contains(path, ".") || strings.HasPrefix(path, "destinations.") && strings.Count(path, ".") == 1 {
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

// misplaced reports an entry below "destinations" that is a setting of the destination above it: its column is wrong. It
// returns false if the entry is a destination.
func (d *fileDecoder) misplaced(entries []entry, i int, path string) bool {
	e := entries[i]
	if i == 0 || e.value.kind == kindMap && e.value.get("type") != nil || !d.isSetting(e.name) {
		return false
	}
	above := i - 1
	for above > 0 && d.isSetting(entries[above].name) {
		above--
	}
	d.list.add(e.value.key, join(path, e.name), "%q is a setting of a destination, in the column of their names: indent it if it belongs to %s", e.name, quote(entries[above].name))
	return true
}

// isSetting reports whether destinations have a setting of that name.
func (d *fileDecoder) isSetting(name string) bool {
	lane := defaultLane()
	all := []reflect.Value{reflect.ValueOf(&lane).Elem()}
	for _, fresh := range slices.Collect(maps.Values(d.registry)) {
		all = append(all, reflect.Indirect(reflect.ValueOf(fresh())))
	}
	return name == "type" || slices.ContainsFunc(settingsOf(all...), func(s setting) bool { return s.name == name })
}
