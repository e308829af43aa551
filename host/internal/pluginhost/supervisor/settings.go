package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/pluginhost/hostservices"
)

// settings are what a process gets from its plugin's configuration when it starts. Those with which a copy served are
// in the record, and go on serving when changed ones are refused.
type settings struct {
	Args   []string `json:"args"`
	Env    []string `json:"env"`
	User   string   `json:"user"`
	Group  string   `json:"group"`
	Limits Limits   `json:"limits"`
	Config []byte   `json:"config"`
	Listen []Socket `json:"sockets"`
}

func (p Plugin) settings() settings {
	return settings{
		Args: p.Args, Env: p.Env, User: p.User, Group: p.Group, Limits: p.Limits, Config: p.Config, Listen: p.Listen,
	}
}

// with returns the configuration with other settings. What says which copies may run stays.
func (p Plugin) with(s settings) Plugin {
	p.Args, p.Env, p.User, p.Group, p.Limits, p.Config = s.Args, s.Env, s.User, s.Group, s.Limits, s.Config
	p.Listen = s.Listen
	return p
}

// differences names the settings that differ.
func (s settings) differences(other settings) string {
	var names []string
	a, b := reflect.ValueOf(s), reflect.ValueOf(other)
	for n := range a.NumField() {
		if !reflect.DeepEqual(a.Field(n).Interface(), b.Field(n).Interface()) {
			names = append(names, a.Type().Field(n).Tag.Get("json"))
		}
	}
	return strings.Join(names, ", ")
}

// settingsDigest returns a digest of how a plugin's process is started and configured, to notice changes.
func (i *instance) settingsDigest() string {
	data, _ := json.Marshal([]any{i.spec.settings(), i.sup.cfg.DieWithHost, i.sup.cfg.HostIP}) // it cannot fail
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// use chooses the settings of the next process of a copy: the configured ones. If these were refused, or if the copy
// takes over again from one that was refused, they are those with which it served.
func (i *instance) use(sha string) {
	i.spec = i.wanted
	_, back := i.rec.Refused[i.rec.Served]
	if s, ok := i.recorded(sha); ok && (i.unfit[sha] || back && sha == i.rec.LastGood) {
		i.spec = i.wanted.with(s)
	}
}

// recorded returns the settings with which a copy served, or if it never did, those of the copy that served last.
func (i *instance) recorded(sha string) (settings, bool) {
	for _, of := range []string{sha, i.rec.Served} {
		if s, ok := i.rec.Settings[of]; ok {
			return s, true
		}
	}
	return settings{}, false
}

// refuseSettings refuses the configured settings for a copy of which a process with them has failed, unless they are
// those that served before, and returns whether it did. They are tried again when they are changed, by the next host,
// and when an operator asks for it.
func (i *instance) refuseSettings(sha string, err error) bool {
	was, ok := i.recorded(sha)
	if !ok || i.unfit[sha] || isDuplicate(err) != "" || managed.IsNotTried(err) && !errors.Is(err, hostservices.ErrListen) || errors.Is(err, managed.ErrChecksum) {
		return false
	}
	changed := i.spec.settings().differences(was)
	if changed == "" {
		return false
	}
	i.unfit[sha] = true
	problem := fmt.Sprintf("the changed %s of plugin %q is refused, and what was configured before is used: %v", changed, i.name,
		err)
	if i.wanted.Where != "" {
		problem = i.wanted.Where + ": " + problem
	}
	i.set(EventConfigRefused, problem, func(s *Status) { s.ConfigProblem = problem })
	return true
}
