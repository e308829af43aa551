package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/internal/printable"
)

// ConvertDriver writes a csi_driver block for each task of a Nomad job that has a csi_plugin block. A container is
// started by the line of docker run in a comment.
func ConvertDriver(name string, src []byte) ([]byte, error) {
	body, err := jobBody(name, src)
	if err != nil {
		return nil, err
	}
	c := converter{src: src, left: map[string][]string{}}
	c.drivers(body)
	if c.out.Len() == 0 {
		return nil, fmt.Errorf("%s: no task has a csi_plugin block; of another job, pannier workload convert writes a group", name)
	}
	c.notes()
	return hclwrite.Format([]byte(c.out.String())), nil
}

func (c *converter) drivers(body *hclsyntax.Body) {
	for _, b := range body.Blocks {
		c.drivers(b.Body)
		for _, inner := range b.Body.Blocks {
			if b.Type == "task" && inner.Type == "csi_plugin" {
				c.driver(b, inner.Body)
			}
		}
	}
}

// flags are the keys of the config block of Nomad's docker driver, with the flags of docker run.
var flags = map[string]string{
	"privileged": "--privileged", "network_mode": "--network", "ipc_mode": "--ipc", "pid_mode": "--pid",
	"volumes": "--volume", "cap_add": "--cap-add", "security_opt": "--security-opt", "entrypoint": "--entrypoint",
}

// driver writes the block of one task.
func (c *converter) driver(task *hclsyntax.Block, plugin *hclsyntax.Body) {
	id, dir := cmp.Or(literal(plugin, "id"), label(task)), cmp.Or(literal(plugin, "mount_dir"), "/csi")
	driver := literal(task.Body, "driver")
	contained := driver == "docker" || driver == "podman"
	endpoint, host := "${endpoint}", "${node.name}"
	if contained {
		endpoint, host = "unix://"+dir+"/csi.sock", "$(hostname)"
	}
	named := map[string]string{
		"CSI_ENDPOINT": endpoint, "node.unique.name": host, "attr.unique.hostname": host, "node.unique.id": host,
	}
	image, command, options := "", []string{}, []string{}
	env := map[string]string{}
	each(task.Body, func(a *hclsyntax.Attribute, b *hclsyntax.Block) {
		switch {
		case a != nil && a.Name != "driver":
			c.leave(a.Name)
		case b != nil && b.Type == "env":
			for key, value := range b.Body.Attributes {
				env[key] = strings.Join(c.texts(value, named), "")
			}
		case b != nil && b.Type == "config":
			each(b.Body, func(a *hclsyntax.Attribute, b *hclsyntax.Block) {
				switch {
				case a == nil && b.Type == "mount":
					options = append(options, "--mount", "type="+cmp.Or(literal(b.Body, "type"), "volume")+",source="+
						literal(b.Body, "source")+",target="+literal(b.Body, "target"))
				case a == nil:
					c.leave(b.Type)
				case a.Name == "image":
					image = strings.Join(c.texts(a, named), "")
				case a.Name == "command":
					command = append(c.texts(a, named), command...)
				case a.Name == "args":
					command = append(command, c.texts(a, named)...)
				case flags[a.Name] == "":
					c.leave(a.Name)
				default:
					for _, value := range c.texts(a, named) {
						if options = append(options, flags[a.Name]); a.Name != "privileged" {
							options = append(options, value)
						}
					}
				}
			})
		case b != nil && b.Type != "csi_plugin":
			c.leave(b.Type)
		}
	})
	if contained {
		c.container(id, dir, image, endpoint, options, command, env)
	} else {
		c.line("csi_driver %q {\ncommand = [%s]", id, quoted(command))
		if len(env) > 0 {
			c.line("env = {")
			for _, key := range slices.Sorted(maps.Keys(env)) {
				c.line("%s = %s", key, quoted([]string{env[key]}))
			}
			c.line("}")
		}
	}
	if kind := literal(plugin, "type"); kind != "" && kind != "monolith" {
		c.line("type = %q", kind)
	}
	if timeout := literal(plugin, "health_timeout"); timeout != "" {
		c.line("health_timeout = %q", timeout)
	}
	c.line("}")
}

// container writes how a driver's container is started, and the beginning of the driver's block.
func (c *converter) container(id, dir, image, endpoint string, options, command []string, env map[string]string) {
	const host = "/var/lib/pannier/csi/" // of the default data_dir
	words := append([]string{
		"docker", "run", "--detach", "--name", id, "--restart", "unless-stopped",
		"--volume", host + id + ":" + dir + ":rshared", "--env", "CSI_ENDPOINT=" + endpoint,
	}, options...)
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if key != "CSI_ENDPOINT" {
			words = append(words, "--env", key+"="+env[key])
		}
	}
	words = append(append(words, image), command...)
	for i, word := range words {
		if words[i] = printable.Argument(word); strings.Contains(word, "$(hostname)") {
			words[i] = `"` + strings.ReplaceAll(word, `"`, `\"`) + `"`
		}
	}
	c.line("# The driver's container; it must listen at %s:", endpoint)
	c.line("# %s", strings.ReplaceAll(strings.Join(words, " "), "\n", "\n# "))
	c.line("csi_driver %q {\nendpoint = %q", id, "unix://"+host+id+"/csi.sock")
	c.line("mount_dir = %q\nstage_publish_base_dir = %q", dir, dir)
}

// texts returns the constant texts of an argument, a list or one text, with what stands for Nomad's variables.
func (c *converter) texts(a *hclsyntax.Attribute, named map[string]string) (all []string) {
	r := a.Expr.Range()
	text := nomadVariable.ReplaceAllStringFunc(string(c.src[r.Start.Byte:r.End.Byte]), func(found string) string {
		here := named[found[2:len(found)-1]]
		if here == "" {
			c.note("$"+found, "no such variable here; it stays as text")
			here = found
		}
		return strings.ReplaceAll(here, "${", "$${")
	})
	expr, diags := hclsyntax.ParseExpression([]byte(text), a.Name, hcl.InitialPos)
	var v cty.Value
	if !diags.HasErrors() {
		v, diags = expr.Value(nil)
	}
	if diags.HasErrors() || !v.IsWhollyKnown() || v.IsNull() {
		c.note(a.Name, "is no constant: "+strings.Join(strings.Fields(text), " "))
		return nil
	}
	if v.Type() == cty.Bool {
		return slices.Repeat([]string{""}, map[bool]int{true: 1}[v.True()])
	}
	if !v.CanIterateElements() {
		v = cty.TupleVal([]cty.Value{v})
	}
	for _, element := range v.AsValueSlice() {
		if one, ok := asString(element); ok {
			all = append(all, one)
		}
	}
	return all
}

// quoted writes texts as HCL does, with the variables of a driver's block.
func quoted(all []string) string {
	var out []string
	for _, text := range all {
		one := string(hclwrite.TokensForValue(cty.StringVal(text)).Bytes())
		for _, name := range []string{"${endpoint}", "${node.name}"} {
			one = strings.ReplaceAll(one, "$"+name, name)
		}
		out = append(out, one)
	}
	return strings.Join(out, ", ")
}
