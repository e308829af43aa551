package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/sdk/service"
)

// ConvertJob writes a workload spec from a group of a Nomad job, or from the content of one. What a workload has too is
// taken as it is; each change has a comment that explains why. group names one of several groups; empty: there is one.
// The error is Problems. ParseWorkload reports what is left to be changed in the result.
func ConvertJob(name string, src []byte, group string) ([]byte, error) {
	body, err := jobBody(name, src)
	if err != nil {
		return nil, err
	}
	all := groupsOf(name, body)
	var names []string
	for _, g := range all {
		names = append(names, g.name)
	}
	i := slices.Index(names, group)
	switch {
	case len(all) == 0:
		return nil, fmt.Errorf("%s: no job, no group, and no block of a group", name)
	case group == "" && len(all) == 1:
		i = 0
	case i < 0:
		return nil, fmt.Errorf("%s: the job has the groups %q: name one by -group", name, names)
	}
	c := converter{src: src, upstreams: map[string]string{}}
	c.workload(all[i])
	return hclwrite.Format([]byte(c.out.String())), nil
}

// jobBody reads a job in HCL.
func jobBody(name string, src []byte) (*hclsyntax.Body, error) {
	var problems Problems
	body, native := parse(name, src, &problems).(*hclsyntax.Body)
	err := problems.err()
	if err == nil && !native {
		err = fmt.Errorf("%s: only a job in HCL is converted", name)
	}
	return body, err
}

// jobGroup is a group of a job; nil: it was written without one.
type jobGroup struct {
	name      string
	body, job *hclsyntax.Body
}

// label is the block's label; empty: it has none.
func label(b *hclsyntax.Block) string { return strings.Join(b.Labels, "") }

func groupsOf(file string, body *hclsyntax.Body) (all []jobGroup) {
	bare := false
	for _, b := range body.Blocks {
		switch b.Type {
		case "job":
			for _, inner := range b.Body.Blocks {
				if inner.Type == "group" {
					all = append(all, jobGroup{label(inner), inner.Body, b.Body})
				}
			}
		case "group":
			all = append(all, jobGroup{label(b), b.Body, nil})
		case "network", "service", "task", "volume":
			bare = true
		}
	}
	if len(all) == 0 && bare {
		base := filepath.Base(file)
		all = append(all, jobGroup{strings.TrimSuffix(strings.TrimSuffix(base, filepath.Ext(base)), ".nomad"), body, nil})
	}
	return all
}

// converter writes one spec.
type converter struct {
	src []byte
	out strings.Builder
	// upstreams are the ports at which sidecars listen for them, by the upstream's name.
	upstreams map[string]string
	left      map[string][]string // the keys without a counterpart, by the reason
	proxied   []string            // the services that have a proxy
}

// Why keys of a job have no counterpart.
const (
	notScheduled  = "a workload runs on the host where it is started"
	notSupervised = "the program is restarted by systemd or the container engine"
	notProvided   = "files and secrets come by other means"
	notLimited    = "limits are the unit's or the container's"
	notHere       = "there is nothing like it here"
)

var withoutCounterpart = map[string]string{
	"datacenters": notScheduled, "node_pool": notScheduled, "region": notScheduled, "type": notScheduled,
	"priority": notScheduled, "constraint": notScheduled, "affinity": notScheduled, "spread": notScheduled,
	"count": notScheduled, "all_at_once": notScheduled, "periodic": notScheduled, "parameterized": notScheduled,
	"scaling": notScheduled, "schedule": notScheduled,
	"restart": notSupervised, "reschedule": notSupervised, "update": notSupervised, "migrate": notSupervised,
	"disconnect": notSupervised, "max_client_disconnect": notSupervised, "stop_after_client_disconnect": notSupervised,
	"prevent_reschedule_on_lost": notSupervised, "lifecycle": notSupervised, "leader": notSupervised,
	"template": notProvided, "artifact": notProvided, "vault": notProvided, "ephemeral_disk": notProvided,
	"secret": notProvided, "dispatch_payload": notProvided,
	"resources": notLimited, "logs": notLimited, "numa": notLimited,
}

func (c *converter) line(format string, args ...any) { fmt.Fprintf(&c.out, format+"\n", args...) }

// note explains a change.
func (c *converter) note(what, why string) { c.line("# %s: %s", what, why) }

// leave collects a key without a counterpart.
func (c *converter) leave(key string) {
	why, known := withoutCounterpart[key]
	if !known {
		why = notHere
	}
	if !slices.Contains(c.left[why], key) {
		c.left[why] = append(c.left[why], key)
	}
}

// notes writes what was left out.
func (c *converter) notes() {
	for _, why := range slices.Sorted(maps.Keys(c.left)) {
		c.note(strings.Join(c.left[why], ", "), why)
	}
}

// each calls for the arguments and blocks of a body in their order, of which one is nil.
func each(body *hclsyntax.Body, do func(a *hclsyntax.Attribute, b *hclsyntax.Block)) {
	attributes := slices.SortedFunc(maps.Values(body.Attributes), func(a, b *hclsyntax.Attribute) int {
		return a.SrcRange.Start.Byte - b.SrcRange.Start.Byte
	})
	blocks := body.Blocks
	for len(attributes)+len(blocks) > 0 {
		if len(blocks) == 0 || len(attributes) > 0 && attributes[0].SrcRange.Start.Byte < blocks[0].TypeRange.Start.Byte {
			do(attributes[0], nil)
			attributes = attributes[1:]
			continue
		}
		do(nil, blocks[0])
		blocks = blocks[1:]
	}
}

// literal returns the text or number of an argument; empty: there is none, or it is no constant.
func literal(body *hclsyntax.Body, name string) string {
	a := body.Attributes[name]
	if a == nil {
		return ""
	}
	v, diags := a.Expr.Value(nil)
	if diags.HasErrors() || v.IsNull() {
		return ""
	}
	if v.Type() == cty.Number {
		return v.AsBigFloat().Text('f', -1)
	}
	if v.Type() == cty.String {
		return v.AsString()
	}
	return ""
}

// attribute writes an argument, with the variables that it has here.
func (c *converter) attribute(a *hclsyntax.Attribute) {
	r := a.Expr.Range()
	text := nomadVariable.ReplaceAllStringFunc(string(c.src[r.Start.Byte:r.End.Byte]), func(found string) string {
		name := found[2 : len(found)-1]
		here := c.variable(name)
		switch here {
		case "":
			c.note("$"+found, "no such variable here; it stays as text")
			return "$" + found
		case found:
		default:
			c.note(found, "is "+here)
		}
		return here
	})
	c.line("%s = %s", a.Name, text)
}

var nomadVariable = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_.-]*\}`)

// variable returns what stands for a variable of Nomad; empty: nothing does.
func (c *converter) variable(name string) string {
	switch name {
	case "NOMAD_JOB_NAME", "NOMAD_JOB_ID", "NOMAD_GROUP_NAME", "NOMAD_TASK_NAME":
		return "${workload.id}"
	case "NOMAD_NAMESPACE":
		return "${workload.namespace}"
	case "NOMAD_DC", "node.datacenter":
		return "${node.datacenter}"
	case "node.unique.name", "attr.unique.hostname":
		return "${node.name}"
	case "NOMAD_SECRETS_DIR":
		return "${secrets_dir}"
	}
	m := nomadAddress.FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	port := "${port." + m[3] + "}"
	if m[1] == "UPSTREAM_" {
		port = c.upstreams[strings.ReplaceAll(m[3], "-", "_")]
	}
	switch {
	case m[2] == "IP":
		return "127.0.0.1"
	case m[2] == "PORT" || port == "":
		return port
	}
	return "127.0.0.1:" + port
}

// nomadAddress is a variable with where a port, or a sidecar for an upstream, listens.
var nomadAddress = regexp.MustCompile(`^NOMAD_(HOST_|UPSTREAM_)?(PORT|ADDR|IP)_(.+)$`)

// plain writes a block with free keys.
func (c *converter) plain(b *hclsyntax.Block) {
	c.line("%s {", b.Type)
	each(b.Body, func(a *hclsyntax.Attribute, inner *hclsyntax.Block) {
		if a != nil {
			c.attribute(a)
		} else {
			c.plain(inner)
		}
	})
	c.line("}")
}

func (c *converter) workload(g jobGroup) {
	c.left = map[string][]string{}
	c.findUpstreams(g.body)
	tasks := slices.DeleteFunc(slices.Clone(g.body.Blocks), func(b *hclsyntax.Block) bool { return b.Type != "task" })
	main := slices.IndexFunc(tasks, func(b *hclsyntax.Block) bool {
		return !slices.ContainsFunc(b.Body.Blocks, func(inner *hclsyntax.Block) bool { return inner.Type == "lifecycle" })
	})
	var program *hclsyntax.Block
	if main >= 0 {
		program = tasks[main]
	}
	c.line("workload %q {", g.name)
	if g.job != nil {
		each(g.job, func(a *hclsyntax.Attribute, b *hclsyntax.Block) {
			switch {
			case a != nil && a.Name == "namespace":
				c.attribute(a)
			case a != nil:
				c.leave(a.Name)
			case b.Type != "group":
				c.leave(b.Type)
			}
		})
	}
	if program != nil && program.Body.Attributes["user"] != nil {
		c.attribute(program.Body.Attributes["user"])
	}
	each(g.body, func(a *hclsyntax.Attribute, b *hclsyntax.Block) {
		switch {
		case a != nil && a.Name == "shutdown_delay":
			c.attribute(a)
		case a != nil:
			c.leave(a.Name)
		case b.Type == "network":
			c.network(b)
		case b.Type == "service":
			c.service(b)
		case b.Type == "volume":
			c.volume(b, program)
		case b.Type != "task":
			c.leave(b.Type)
		}
	})
	runs := false
	for _, task := range tasks {
		for _, b := range task.Body.Blocks {
			if b.Type == "service" {
				c.service(b)
			}
		}
		if task != program {
			c.note(fmt.Sprintf("task %q", label(task)), "a workload has one program: write another workload, with after")
		} else {
			runs = c.program(task)
		}
	}
	c.sidecars(runs || len(tasks) == 0)
	c.notes()
	c.line("}")
}

// findUpstreams finds the ports at which sidecars listen, for Nomad's variables.
func (c *converter) findUpstreams(body *hclsyntax.Body) {
	for _, b := range body.Blocks {
		if b.Type == "upstreams" {
			c.upstreams[strings.ReplaceAll(literal(b.Body, "destination_name"), "-", "_")] = literal(b.Body, "local_bind_port")
		}
		c.findUpstreams(b.Body)
	}
}

func (c *converter) network(b *hclsyntax.Block) {
	c.line("network {")
	each(b.Body, func(a *hclsyntax.Attribute, port *hclsyntax.Block) {
		switch {
		case a != nil && a.Name == "mode":
			if mode := literal(b.Body, "mode"); mode != "host" {
				c.note(fmt.Sprintf("mode = %q", mode), "a workload has its node's network")
			}
		case a != nil:
			c.note(a.Name, networkFields.refused[a.Name])
		case port.Type == "port":
			c.port(port)
		default:
			c.note(port.Type, networkFields.refused[port.Type])
		}
	})
	c.line("}")
}

// port takes the number at which the program listens: that inside of Nomad's network, if it has no other.
func (c *converter) port(b *hclsyntax.Block) {
	c.line("port %q {", label(b))
	to, static := literal(b.Body, "to"), literal(b.Body, "static")
	each(b.Body, func(a *hclsyntax.Attribute, _ *hclsyntax.Block) {
		switch {
		case a == nil:
		case a.Name == "static":
			c.attribute(a)
		case a.Name == "to" && to != "" && !strings.HasPrefix(to, "-") && static == "":
			c.note("to = "+to, "a workload has its node's network, where the program listens at this port")
			c.line("static = %s", to)
		case a.Name == "to" && static != "" && to != static:
			c.note("to = "+to, "a workload has its node's network: let the program listen at "+static)
		default:
			c.note(a.Name, portFields.refused[a.Name])
		}
	})
	c.line("}")
}

func (c *converter) service(b *hclsyntax.Block) {
	name := label(b)
	if text := literal(b.Body, "name"); text != "" {
		name = text
	}
	for _, connect := range b.Body.Blocks {
		if connect.Type == "connect" && slices.ContainsFunc(connect.Body.Blocks, func(inner *hclsyntax.Block) bool {
			return inner.Type == "sidecar_service" || inner.Type == "gateway"
		}) {
			c.proxied = append(c.proxied, name)
		}
	}
	c.model(b, reflect.TypeFor[service.Service]())
}

// model writes a block that a type of the model reads.
func (c *converter) model(b *hclsyntax.Block, t reflect.Type) {
	if t == reflect.TypeFor[service.Check]() && (literal(b.Body, "type") == "script" || b.Body.Attributes["command"] != nil) {
		c.note("a check of a script", noScripts)
		c.line("check {\ntype = \"process\"")
		for _, name := range []string{"name", "interval"} {
			if a := b.Body.Attributes[name]; a != nil {
				c.attribute(a)
			}
		}
		c.line("}")
		return
	}
	f, inner := fieldsOf(t), map[string]reflect.Type{}
	for n := range t.NumField() {
		switch of := t.Field(n).Type; {
		case of.Kind() == reflect.Pointer, isBlocks(of), isLabelled(of):
			inner[keyOf(t.Field(n))] = of.Elem()
		}
	}
	labels := ""
	for _, l := range b.Labels {
		labels += fmt.Sprintf(" %q", l)
	}
	c.line("%s%s {", b.Type, labels)
	each(b.Body, func(a *hclsyntax.Attribute, block *hclsyntax.Block) {
		switch {
		case a != nil && f.refused[a.Name] != "":
			c.note(a.Name, f.refused[a.Name])
		case a != nil && a.Name == "provider" && literal(b.Body, "provider") != "consul":
			c.note("provider", "services are kept by Consul")
		case a != nil && a.Name == "address_mode" && !slices.Contains([]string{"auto", "host"}, literal(b.Body, a.Name)):
			c.note("address_mode", "a workload has its node's network")
		case a != nil && (slices.Contains(f.attrs, a.Name) || slices.Contains(f.maps, a.Name)):
			c.attribute(a)
		case a != nil:
			c.note(a.Name, notHere)
		case inner[block.Type] != nil:
			c.model(block, inner[block.Type])
		case slices.Contains(f.maps, block.Type):
			c.plain(block)
		case f.refused[block.Type] != "":
			c.note(block.Type, f.refused[block.Type])
		default:
			c.note(block.Type, notHere)
		}
	})
	c.line("}")
}

// volume takes where the program has it from the task that mounts it.
func (c *converter) volume(b, program *hclsyntax.Block) {
	name := label(b)
	if kind := literal(b.Body, "type"); kind != "csi" {
		c.note(fmt.Sprintf("volume %q of the type %q", name, kind), "the program uses the host's directory as it is; a volume has a CSI driver")
		return
	}
	c.line("volume %q {", name)
	each(b.Body, func(a *hclsyntax.Attribute, block *hclsyntax.Block) {
		switch {
		case a != nil && a.Name == "type":
		case a != nil && slices.Contains(requestFields.attrs, a.Name):
			c.attribute(a)
		case a != nil && a.Name == "per_alloc":
			c.note("per_alloc", "name the volume of this workload as source")
		case a != nil:
			c.note(a.Name, notHere)
		case slices.Contains(requestFields.blocks, block.Type):
			c.plain(block)
		default:
			c.note(block.Type, notHere)
		}
	})
	if program != nil {
		for _, mount := range program.Body.Blocks {
			if mount.Type != "volume_mount" || literal(mount.Body, "volume") != name {
				continue
			}
			if a := mount.Body.Attributes["destination"]; a != nil {
				c.attribute(a)
			}
			if a := mount.Body.Attributes["read_only"]; a != nil && b.Body.Attributes["read_only"] == nil {
				c.attribute(a)
			}
		}
	}
	c.line("}")
}

// program writes what pannier workload run runs, and reports whether the task has that.
func (c *converter) program(task *hclsyntax.Block) bool {
	driver, runs := literal(task.Body, "driver"), false
	for _, b := range task.Body.Blocks {
		switch b.Type {
		case "config":
			if image := literal(b.Body, "image"); image != "" {
				c.note(fmt.Sprintf("task %q of the driver %q", label(task), driver),
					"docker run $(pannier workload start -o docker SPEC) "+image)
				break
			}
			runs = true
			c.line("exec {")
			for _, name := range []string{"command", "args"} {
				if a := b.Body.Attributes[name]; a != nil {
					c.attribute(a)
				}
			}
			for _, name := range []string{"kill_signal", "kill_timeout"} {
				if a := task.Body.Attributes[name]; a != nil {
					c.attribute(a)
				}
			}
			for _, env := range task.Body.Blocks {
				if env.Type == "env" {
					c.plain(env)
				}
			}
			c.line("}")
		case "env", "service", "volume_mount":
		default:
			c.leave(b.Type)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(task.Body.Attributes)) {
		if !slices.Contains([]string{"driver", "user", "kill_signal", "kill_timeout"}, name) {
			c.leave(name)
		}
	}
	return runs
}

// sidecars writes the Envoys that Nomad starts by itself. run is true if pannier workload run is what runs the
// workload.
func (c *converter) sidecars(run bool) {
	for _, name := range c.proxied {
		if !run {
			c.note(fmt.Sprintf("the proxy of service %q", name), "run an Envoy beside the program, as docs/consul.md shows")
			continue
		}
		c.note("sidecar", "Nomad starts an Envoy by itself; here it is a program of your choice")
		c.line("sidecar {")
		if len(c.proxied) > 1 {
			c.line("service = %q", name)
		}
		c.line(`command = ["envoy", "-c", "${bootstrap}", "--concurrency", "1", "--base-id", "${base_id}", "--restart-epoch", "${restart_epoch}"]`)
		c.line("}")
	}
}
