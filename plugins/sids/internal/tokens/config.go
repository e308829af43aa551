package tokens

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/pannier/pannier/sdk/service"
)

// defaultRate is how many tokens are written in a second.
const defaultRate = 500

// config is the agent's block plugin "sids" { config { } }.
type config struct {
	// tokenFiles are, by the names of the agent's consul blocks, the files with the
	// tokens that may write ACLs. They are read at each use, so they may be replaced.
	tokenFiles map[string]string
	rate       int // writes a second, and at once
}

// parseConfig reads a configuration. An error names the key that is wrong.
func parseConfig(raw []byte) (config, error) {
	c := config{rate: defaultRate, tokenFiles: map[string]string{}}
	keys, err := object("the configuration", raw)
	if err != nil {
		return config{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		switch name {
		case "rate":
			c.rate, err = parseRate(keys[name])
		case "token_file":
			err = c.add(service.DefaultConsul, keys[name])
		case "consul":
			err = c.addConsuls(keys[name])
		default:
			err = fmt.Errorf("unknown key %q: there are token_file, rate and consul", name)
		}
		if err != nil {
			return config{}, err
		}
	}
	return c, nil
}

func parseRate(raw json.RawMessage) (int, error) {
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil || n != math.Trunc(n) || n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("rate: got %s, want a whole number of tokens a second, 1 or more", raw)
	}
	return int(n), nil
}

// addConsuls reads blocks consul "NAME" { }: an object by name, or a list of such
// where there are several.
func (c config) addConsuls(raw json.RawMessage) error {
	var blocks []json.RawMessage
	if json.Unmarshal(raw, &blocks) != nil {
		blocks = []json.RawMessage{raw}
	}
	for _, block := range blocks {
		consuls, err := object("consul", block)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(consuls)) {
			if err := c.addConsul(name, consuls[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c config) addConsul(name string, raw json.RawMessage) error {
	keys, err := object(fmt.Sprintf("consul %q", name), raw)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key != "token_file" {
			return fmt.Errorf("consul %q: unknown key %q: there is token_file", name, key)
		}
		if err := c.add(name, keys[key]); err != nil {
			return err
		}
	}
	return nil
}

// add notes the token file of one Consul.
func (c config) add(consul string, raw json.RawMessage) error {
	var path string
	if err := json.Unmarshal(raw, &path); err != nil || !filepath.IsAbs(path) {
		return fmt.Errorf("%s: got %s, want an absolute path", key(consul), raw)
	}
	if _, twice := c.tokenFiles[consul]; twice {
		return fmt.Errorf("%s: given twice", key(consul))
	}
	c.tokenFiles[consul] = path
	return nil
}

// key is what the operator sets for one Consul.
func key(consul string) string {
	if consul == service.DefaultConsul {
		return "token_file"
	}
	return fmt.Sprintf("token_file of consul %q", consul)
}

func object(what string, raw json.RawMessage) (map[string]json.RawMessage, error) {
	var out map[string]json.RawMessage
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("%s: got %s, want a block", what, raw)
	}
	return out, nil
}
