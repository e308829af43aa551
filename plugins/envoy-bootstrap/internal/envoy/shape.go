package envoy

import (
	"strings"
	"sync"
)

// shape is what decides which fields a bootstrap has, for a proxy without access logs and without keys of its own but
// for keyPrometheusBind: bootstraps of one shape differ in a few values only. So their text is made by Envoy's types,
// and validated, once per shape, with placeholders for the values.
type shape struct {
	admin, ready, server, bind kind
	tls, ca                    bool
	service, datacenter, token bool
}

// kind is that of an Endpoint.
type kind int

const (
	absent kind = iota
	onPort
	onSocket
)

// shapeOf returns p's shape. ok is false where the text may depend on more than that, or a value may be one that Envoy
// refuses or that JSON escapes.
func shapeOf(p *Proxy) (s shape, ok bool) {
	for key := range p.Config {
		if len(key) >= len(keyPrefix) && strings.EqualFold(key[:len(keyPrefix)], keyPrefix) && key != keyPrometheusBind {
			return s, false
		}
	}
	bind, err := bindOf(*p, keyPrometheusBind)
	if err != nil {
		return s, false
	}
	if p.AccessLogs != nil && p.AccessLogs.Enabled || p.Server.Socket == "" && p.Server.Endpoint.Socket != "" {
		return s, false
	}
	s = shape{
		admin: kindOf(p.Admin), ready: kindOf(p.Ready), server: kindOf(p.Server.at()), bind: kindOf(bind),
		tls: p.Server.TLS, ca: p.Server.CA != "",
		service: p.Service != "", datacenter: p.Datacenter != "", token: p.Token != "",
	}
	if s.server == absent || s.admin == absent && (s.ready != absent || s.bind != absent) || p.ID == "" ||
		len(p.Token) > longestHeader || strings.Contains(p.Token, "\n") {
		return s, false
	}
	for _, e := range []Endpoint{p.Admin, p.Ready, p.Server.at()} {
		if kindOf(e) == onPort && (e.Port == 0 || e.Port > 65535 || e.Address == "") {
			return s, false
		}
	}
	for _, v := range variables {
		if !isPlain(v.of(p)) {
			return s, false
		}
	}
	return s, true
}

// longestHeader is how long Envoy's API lets a header's value be, in bytes.
const longestHeader = 16384

func kindOf(e Endpoint) kind {
	switch {
	case e == (Endpoint{}):
		return absent
	case e.Socket != "":
		return onSocket
	}
	return onPort
}

// where is the endpoint's socket or IP address.
func (e Endpoint) where() string {
	if e.Socket != "" {
		return e.Socket
	}
	return e.Address
}

// at is where the server is.
func (s Server) at() Endpoint {
	if s.Socket != "" {
		return Endpoint{Socket: s.Socket}
	}
	return s.Endpoint
}

// isPlain reports that a text is the same in JSON, but for line feeds.
func isPlain(text string) bool {
	for n := range len(text) {
		if c := text[n]; (c < ' ' && c != '\n') || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// variable is a value in which the bootstraps of one shape differ.
type variable struct {
	// placeholder stands for the value in the text of a shape, and nothing else there is like it.
	placeholder string
	of          func(p *Proxy) string
}

var variables = []variable{
	{"<id>", func(p *Proxy) string { return p.ID }},
	{"<service>", func(p *Proxy) string { return p.Service }},
	{"<datacenter>", func(p *Proxy) string { return p.Datacenter }},
	{"<namespace>", func(p *Proxy) string { return orDefault(p.Namespace) }},
	{"<partition>", func(p *Proxy) string { return orDefault(p.Partition) }},
	{"<token>", func(p *Proxy) string { return p.Token }},
	{"<ca>", func(p *Proxy) string { return p.Server.CA }},
	{"<admin>", func(p *Proxy) string { return p.Admin.where() }},
	{"<ready>", func(p *Proxy) string { return p.Ready.where() }},
	{"<server>", func(p *Proxy) string { return p.Server.at().where() }},
	{"<bind>", func(p *Proxy) string { return boundTo(p).Address }},
	{"65001", func(p *Proxy) string { return portText(p.Admin) }},
	{"65002", func(p *Proxy) string { return portText(p.Ready) }},
	{"65003", func(p *Proxy) string { return portText(p.Server.Endpoint) }},
	{"65004", func(p *Proxy) string { return portText(boundTo(p)) }},
}

// boundTo is where Prometheus gets metrics of a proxy that has a shape.
func boundTo(p *Proxy) Endpoint {
	e, _ := bindOf(*p, keyPrometheusBind) // shapeOf has checked it
	return e
}

// specimen is a proxy of the shape with the placeholders.
func (s shape) specimen() Proxy {
	p := Proxy{
		ID: "<id>", Namespace: "<namespace>", Partition: "<partition>",
		Service: given(s.service, "<service>"), Datacenter: given(s.datacenter, "<datacenter>"),
		Token: given(s.token, "<token>"),
		Admin: s.admin.endpoint("<admin>", 65001), Ready: s.ready.endpoint("<ready>", 65002),
		Server: Server{TLS: s.tls, CA: given(s.ca, "<ca>")},
	}
	if s.bind != absent {
		p.Config = map[string]any{keyPrometheusBind: "<bind>:65004"}
	}
	if s.server == onSocket {
		p.Server.Socket = "<server>"
	} else {
		p.Server.Endpoint = s.server.endpoint("<server>", 65003)
	}
	return p
}

func given(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func (k kind) endpoint(where string, port uint32) Endpoint {
	switch k {
	case onPort:
		return Endpoint{Address: where, Port: port}
	case onSocket:
		return Endpoint{Socket: where}
	}
	return Endpoint{}
}

// piece is a text, and a variable behind it; nil: none.
type piece struct {
	text string
	of   func(p *Proxy) string
}

// pieces has the text of each shape, cut at its placeholders.
var pieces sync.Map // of shape to []piece

// pieces returns the text of the shape.
func (s shape) pieces() ([]piece, error) {
	if known, ok := pieces.Load(s); ok {
		return known.([]piece), nil
	}
	text, err := compose(s.specimen())
	if err != nil {
		return nil, err
	}
	cut := cutAt(string(text), variables)
	pieces.Store(s, cut)
	return cut, nil
}

func cutAt(text string, at []variable) []piece {
	if len(at) == 0 {
		return []piece{{text: text}}
	}
	var out []piece
	parts := strings.Split(text, at[0].placeholder)
	for n, part := range parts {
		out = append(out, cutAt(part, at[1:])...)
		if n < len(parts)-1 {
			out[len(out)-1].of = at[0].of
		}
	}
	return out
}

// fill puts a proxy's values into the text of its shape.
func fill(cut []piece, p *Proxy) []byte {
	size := 0
	values := make([]string, len(cut))
	for n, c := range cut {
		if c.of != nil {
			values[n] = strings.ReplaceAll(c.of(p), "\n", `\n`)
		}
		size += len(c.text) + len(values[n])
	}
	out := make([]byte, 0, size)
	for n, c := range cut {
		out = append(append(out, c.text...), values[n]...)
	}
	return out
}
