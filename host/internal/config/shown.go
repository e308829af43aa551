package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// fileScheme begins a reference to a file with a secret.
const fileScheme = "file://"

// redacted stands for a secret.
const redacted = "[REDACTED]"

// Files are what the configuration was read from: files, and folders of files.
func (a *Agent) Files() []string { return slices.Clone(a.source.Paths) }

// Shown returns the configuration as JSON, without secrets. Of a plugin's own configuration only the keys, numbers and
// booleans are shown: the host does not know which of its texts are secrets.
func (a *Agent) Shown() ([]byte, error) {
	type plugin struct {
		Plugin
		Config any `json:",omitempty"` // in place of Plugin's
	}
	shown := struct {
		Agent
		Plugins []plugin // in place of Agent's
	}{Agent: *a}
	for _, p := range a.Plugins {
		one := plugin{Plugin: p}
		one.Env = maps.Clone(p.Env)
		for name := range one.Env {
			one.Env[name] = redacted
		}
		if len(p.Config) > 0 {
			if err := json.Unmarshal(p.Config, &one.Config); err != nil {
				return nil, fmt.Errorf("plugin %q: config: %w", p.Name, err)
			}
			one.Config = withoutTexts(one.Config)
		}
		shown.Plugins = append(shown.Plugins, one)
	}
	shown.Drivers = slices.Clone(a.Drivers)
	for i := range shown.Drivers {
		shown.Drivers[i] = shown.Drivers[i].withoutSecrets()
	}
	if u, err := url.Parse(a.TracesEndpoint); err == nil {
		shown.TracesEndpoint = u.Redacted()
	}
	return json.MarshalIndent(shown, "", "  ")
}

func (d Driver) withoutSecrets() Driver {
	d.Env = maps.Clone(d.Env)
	for name, value := range d.Env {
		if !strings.HasPrefix(value, fileScheme) {
			d.Env[name] = redacted
		}
	}
	if d.Controller != nil {
		controller := d.Controller.withoutSecrets()
		d.Controller = &controller
	}
	return d
}

// withoutTexts replaces the texts in a JSON value, which it may change.
func withoutTexts(v any) any {
	switch v := v.(type) {
	case string:
		return redacted
	case []any:
		for i := range v {
			v[i] = withoutTexts(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = withoutTexts(v[key])
		}
	}
	return v
}

// secretName matches names of keys and variables that have secrets.
var secretName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)token|secret|passw|credential|key`) })

// Secrets returns the secrets in the configuration, by where they are, and the files, and folders of files, that it
// names or that its agent has, which have others. Not all of them need to be there.
func (a *Agent) Secrets() (values map[string]string, files []string) {
	values = map[string]string{}
	found := func(where, name, value string) {
		switch path := strings.TrimPrefix(value, fileScheme); {
		case filepath.IsAbs(path):
			if secretName().MatchString(name) || path != value {
				files = append(files, path)
			}
		case value != "" && secretName().MatchString(name):
			values[where+": "+name] = value
		}
	}
	for place, source := range map[string]KeySource{"encrypt": a.Gossip, "ledger_encryption": a.Ledger} {
		found(place, "key", string(source.Key))
		found(place, "key_file", source.File)
	}
	if a.TLS != nil {
		found("tls", "key_file", a.TLS.Key)
	}
	if u, err := url.Parse(a.TracesEndpoint); err == nil {
		password, _ := u.User.Password()
		found("traces", "password", password)
	}
	for _, c := range a.Consuls {
		found(c.Block(), "token_file", c.TokenFile)
		found(c.Block(), "key_file", c.KeyFile)
	}
	for _, p := range a.Plugins {
		where := fmt.Sprintf("plugin %q", p.Name)
		if p.Frontend != nil && p.Frontend.API != nil {
			found(where, "token_file", p.Frontend.API.TokenFile)
		}
		for name, value := range p.Env {
			found(where, name, value)
		}
		var object any
		if json.Unmarshal(p.Config, &object) == nil {
			eachText("", object, func(name, value string) { found(where, name, value) })
		}
	}
	for _, d := range a.Drivers {
		d.secrets(found)
	}
	files = append(files, a.SecretsDir)
	for _, name := range []string{"secrets.key", "secrets.keys", "node.secret"} {
		files = append(files, filepath.Join(a.DataDir, name))
	}
	return values, files
}

func (d Driver) secrets(found func(where, name, value string)) {
	where := fmt.Sprintf("csi_driver %q", d.ID)
	for name, value := range d.Env {
		found(where, name, value)
	}
	if d.EphemeralVolumes != nil {
		for _, reference := range d.EphemeralVolumes.Secrets {
			found(where, "secret", reference)
		}
	}
	if d.Controller != nil {
		d.Controller.secrets(found)
	}
}

// eachText calls do with the texts in a JSON value, and the key that each is below.
func eachText(name string, v any, do func(name, value string)) {
	switch v := v.(type) {
	case string:
		do(name, v)
	case []any:
		for _, element := range v {
			eachText(name, element, do)
		}
	case map[string]any:
		for key, element := range v {
			eachText(key, element, do)
		}
	}
}
