package config

import (
	"fmt"
	"io/fs"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"

	"github.com/pannier/pannier/host/internal/workload/specs"
)

// maxSockets bounds the listening sockets of a front door.
const maxSockets = 16

// socketName matches names of listening sockets, which are passed on in a list.
var socketName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`) })

// frontend reads the blocks of a front door. A later file's listen block replaces an earlier one of its name, and an
// api block an earlier one.
func (l *loader) frontend(s *section, p *Plugin) {
	listens := s.content.Blocks.OfType("listen")
	if len(listens) == 0 && len(s.content.Blocks.OfType("api")) == 0 {
		return
	}
	if p.Frontend == nil {
		p.Frontend = &Frontend{}
	}
	seen := map[string]bool{}
	for _, block := range listens {
		name := block.Labels[0]
		switch {
		case !socketName().MatchString(name):
			s.problems.add(block.DefRange, "%s: name %q: 1 to 64 letters, digits, - and _ are allowed", s.key("listen"), name)
			continue
		case seen[name]:
			s.problems.add(block.DefRange, "%s: listen %q given twice", s.path, name)
			continue
		}
		seen[name] = true
		f := p.Frontend
		f.Sockets = slices.DeleteFunc(f.Sockets, func(other Socket) bool { return other.Name == name })
		f.Sockets = append(f.Sockets, socket(s, block))
	}
	if len(p.Frontend.Sockets) > maxSockets {
		s.fail("listen", "at most %d are allowed", maxSockets)
	}
	var access API
	if in := s.block("api", keys{
		"policy": id(&access.Policy), "token_file": absolutePath(&access.TokenFile),
	}); in != nil {
		p.Frontend.API = &access
		if in.has("policy") && in.has("token_file") {
			in.fail("policy", "token_file names a token, whose policies count: write one of the two")
		}
	}
}

// socket reads a listen block.
func socket(s *section, block *hcl.Block) Socket {
	in := s.inner(block, fields{attrs: []string{"address", "mode", "owner", "group"}})
	out := Socket{Name: block.Labels[0], Mode: 0o600}
	var mode string
	in.read(keys{"address": &out.Address, "mode": &mode, "owner": &out.Owner, "group": &out.Group})
	if out.Address == "" {
		in.fail("address", "is required: an IP address and a port, or unix:// and an absolute path")
		return out
	}
	if !strings.HasPrefix(out.Address, "unix://") {
		if err := checkTCP(out.Address); err != "" {
			in.fail("address", "%s", err)
		}
		for _, key := range []string{"mode", "owner", "group"} {
			if in.has(key) {
				in.fail(key, "is for unix sockets only")
			}
		}
		return out
	}
	if err := CheckEndpoint(out.Address); err != nil {
		in.fail("address", "%v", err)
	} else if err := specs.CheckPath(strings.TrimPrefix(out.Address, "unix://")); err != nil {
		in.fail("address", "%v", err)
	}
	if in.has("mode") {
		bits, err := strconv.ParseUint(mode, 8, 32)
		if err != nil || bits > 0o777 {
			in.fail("mode", "%q is no mode such as \"0660\"", mode)
		}
		out.Mode = fs.FileMode(bits)
	}
	return out
}

// checkTCP returns what is wrong with an address to listen on. Names are refused: what they mean may change.
func checkTCP(address string) string {
	full := address
	if strings.HasPrefix(full, ":") {
		full = "0.0.0.0" + full
	}
	at, err := netip.ParseAddrPort(full)
	if err != nil || at.Port() == 0 {
		return strconv.Quote(address) + " is neither an IP address and a port such as 127.0.0.1:8080, nor unix:// and an " +
			"absolute path"
	}
	return ""
}

// checkFrontends compares front doors with the rest of the configuration.
func (l *loader) checkFrontends() {
	taken := map[string]string{}
	for _, p := range l.agent.Plugins {
		if p.Frontend == nil {
			continue
		}
		fail := func(format string, args ...any) { l.fail(fmt.Sprintf("plugin %q", p.Name), format, args...) }
		for _, socket := range p.Frontend.Sockets {
			if other, twice := taken[socket.Address]; twice {
				fail("listen %q: address: %q is that of plugin %q too", socket.Name, socket.Address, other)
			}
			taken[socket.Address] = p.Name
		}
		api := p.Frontend.API
		switch {
		case api == nil || !l.agent.ACL.Enabled:
		case api.Policy == "" && api.TokenFile == "":
			fail("api: policy is required where ACLs are on: the name of the policy that says what it may do")
		}
	}
}
