package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"strconv"
)

// config is the body of the agent's plugin "dirs" { config { } } block.
type config struct {
	// Mode is the mode of the directories that Create makes, in octal; default 0755.
	Mode string `json:"mode"`
}

// parse reads a configuration. An unknown key is an error.
func parse(data []byte) (fs.FileMode, error) {
	c := config{Mode: "0755"}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return 0, fmt.Errorf("read the configuration: %w", err)
	}
	mode, err := strconv.ParseUint(c.Mode, 8, 32)
	if err != nil || mode > 0o777 {
		return 0, fmt.Errorf("mode: %q is not an octal mode such as 0755", c.Mode)
	}
	return fs.FileMode(mode), nil
}

// Validate implements sdk.Validator.
func (*dirs) Validate(_ context.Context, data []byte) error {
	_, err := parse(data)
	return err
}

// Configure implements sdk.Configurer. It may be called while other calls run.
func (d *dirs) Configure(_ context.Context, data []byte) error {
	mode, err := parse(data)
	if err != nil {
		return err
	}
	d.mode.Store(uint32(mode))
	return nil
}
