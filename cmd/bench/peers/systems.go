package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// opener creates a system's tables in a separate database and returns its variants.
type opener func(ctx context.Context, b *bench, db database) ([]variant, error)

// system is a word of --only.
type system struct {
	name string
	open opener
	// module or npm is the package whose version is printed; "" is this tree.
	module, npm string
}

// systems are compared in this order; notifyd's come first.
func systems() []system {
	return []system{
		{name: "queue", open: openNotifyd(outboxsql.ModeQueue)},
		{name: "stream", open: openNotifyd(outboxsql.ModeStream)},
		{name: "river", open: openRiver, module: "github.com/riverqueue/river"},
		{name: "watermill", open: openWatermill, module: "github.com/ThreeDotsLabs/watermill-sql/v4"},
		{name: "graphile-worker", open: openGraphile, npm: "graphile-worker"},
		{name: "pg-boss", open: openBoss, npm: "pg-boss"},
	}
}

// names returns the words of --only.
func names() (all []string) {
	for _, s := range systems() {
		all = append(all, s.name)
	}
	return all
}

// version returns the version of a system that is measured.
func (s *system) version(n *node) (string, error) {
	switch {
	case s.npm != "":
		return n.packageVersion(s.npm)
	case s.module == "":
		return "this tree", nil
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == s.module {
				return dep.Version, nil
			}
		}
	}
	return "unknown", nil
}

// enter creates a system's tables. It skips systems that this machine cannot run, unless --require is set.
func (b *bench) enter(ctx context.Context, r *result, s system) error {
	if s.npm != "" && b.node == nil {
		n, err := installNode(ctx, b.progress)
		if errors.Is(err, errNoNode) && !b.require {
			b.say("%s is left out: %v", s.name, err)
			r.LeftOut = append(r.LeftOut, fmt.Sprintf("%s: %v", s.name, err))
			return nil
		}
		if err != nil {
			return fmt.Errorf("install %s: %w", s.name, err)
		}
		b.node, r.Versions["node"] = &n, n.version
	}
	db, err := b.database(ctx, s.name)
	if err != nil {
		return fmt.Errorf("make a database for %s: %w", s.name, err)
	}
	variants, err := s.open(ctx, b, db)
	if err != nil {
		return fmt.Errorf("make the tables of %s: %w", s.name, err)
	}
	if r.Versions[s.name], err = s.version(b.node); err != nil {
		return fmt.Errorf("version of %s: %w", s.name, err)
	}
	for _, v := range variants {
		v.db = db
		b.variants = append(b.variants, v)
		r.Systems = append(r.Systems, systemResult{System: v.name, Settings: v.settings, CommitOff: v.commit == commitOff})
		if s.npm == "" && s.module == "" {
			b.ours++
		}
	}
	return nil
}
