package envoy

import (
	"strings"
	"sync"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// addStatsConfig says how the names of metrics are taken apart into tags.
func addStatsConfig(b *bootstrapv3.Bootstrap, p Proxy) error {
	text, err := settings(p.Config).text(keyStatsConfig)
	if err != nil {
		return err
	}
	if text != "" {
		b.StatsConfig = &metricsv3.StatsConfig{}
		return fragment(keyStatsConfig, []byte(text), b.StatsConfig)
	}
	own, err := settings(p.Config).list(keyStatsTags)
	if err != nil {
		return err
	}
	// use_all_default_tags is Envoy's default and is said all the same, as Consul does.
	conf := &metricsv3.StatsConfig{UseAllDefaultTags: wrapperspb.Bool(true)}
	taken := map[string]bool{}
	for _, tag := range own {
		name, value, found := strings.Cut(tag, "=")
		if !found {
			value = "1"
		}
		name = strings.ToLower(name)
		taken[name] = true
		conf.StatsTags = append(conf.StatsTags, fixedTag(name, value))
	}
	conf.StatsTags = append(conf.StatsTags, nameTags()...)
	for _, tag := range [][2]string{
		{"local_cluster", p.Service},
		{"consul.source.service", p.Service},
		{"consul.source.namespace", orDefault(p.Namespace)},
		{"consul.source.partition", orDefault(p.Partition)},
		{"consul.source.datacenter", p.Datacenter},
	} {
		if name, value := tag[0], tag[1]; value != "" && !taken[name] {
			conf.StatsTags = append(conf.StatsTags, fixedTag(name, value))
		}
	}
	b.StatsConfig = conf
	return nil
}

func fixedTag(name, value string) *metricsv3.TagSpecifier {
	return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_FixedValue{FixedValue: value}}
}

func regexTag(name, pattern string) *metricsv3.TagSpecifier {
	return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: pattern}}
}

// segment is one part of a metric's name.
const segment = `[^.]+`

// target is the name that Consul gives to the cluster of a destination, in its parts:
// what is before a part's segment and what is behind it.
var target = []struct{ tag, before, behind string }{
	{"custom_hash", `(?:`, `~)?`},
	{"service_subset", `(?:`, `\.)?`},
	{"service", ``, `\.`},
	{"namespace", ``, `\.`},
	{"partition", `(?:`, `\.)?`},
	{"datacenter", ``, `\.`},
	{"routing_type", ``, `\.`},
	{"trust_domain", ``, `\.`},
}

// deprecated are the tags that Consul had before 1.9 and gives on, without the
// "destination" in their names. There was none of a partition then.
var deprecated = []string{"custom_hash", "service_subset", "service", "namespace", "datacenter", "routing_type", "trust_domain"}

// nameTags take apart the names that Consul gives to clusters and listeners. The outer
// group of a pattern is cut out of the metric's name, the inner one is the tag's value.
var nameTags = sync.OnceValue(func() []*metricsv3.TagSpecifier {
	const (
		cluster     = `^cluster\.`
		passthrough = cluster + `(?:passthrough~)?`
		peer        = cluster + `(` + segment + `\.(?:` + segment + `\.)?(` + segment + `)\.external\.` + segment + `\.consul\.)`
	)
	var tags []*metricsv3.TagSpecifier
	for _, part := range target {
		tags = append(tags, regexTag("consul.destination."+part.tag, passthrough+partPattern(part.tag)))
		if part.tag == "datacenter" {
			tags = append(tags, regexTag("consul.destination.peer", peer))
		}
	}
	tags = append(tags,
		regexTag("consul.destination.target", passthrough+throughPattern("datacenter")),
		regexTag("consul.destination.full_target", passthrough+throughPattern("trust_domain")))
	for _, tag := range [][2]string{
		{"service", `upstream(?:_peered)?\.((<>)(?:\.<>)?(?:\.<>)?\.<>\.)`},
		{"datacenter", `upstream\.(<>(?:\.<>)?(?:\.<>)?\.(<>)\.)`},
		{"peer", `upstream_peered\.(<>(?:\.<>)?\.(<>)\.)`},
		{"namespace", `upstream(?:_peered)?\.(<>(?:\.(<>))?(?:\.<>)?\.<>\.)`},
		{"partition", `upstream\.(<>(?:\.<>)?(?:\.(<>))?\.<>\.)`},
	} {
		tags = append(tags, regexTag("consul.upstream."+tag[0], `^(?:tcp|http)\.`+strings.ReplaceAll(tag[1], "<>", segment)))
	}
	for _, tag := range deprecated {
		tags = append(tags, regexTag("consul."+tag, cluster+partPattern(tag)))
	}
	return append(tags,
		regexTag("consul.target", cluster+throughPattern("datacenter")),
		regexTag("consul.full_target", cluster+throughPattern("trust_domain")))
})

// partPattern takes one part out of a destination's name.
func partPattern(tag string) string {
	var p strings.Builder
	p.WriteString(`(`)
	for _, part := range target {
		value := segment
		switch {
		case part.tag == tag:
			value = `(` + segment + `)`
		case part.tag == "routing_type" && (tag == "partition" || tag == "datacenter"):
			value = `internal[^.]*` // a peer's name has neither
		}
		p.WriteString(part.before + value + part.behind)
	}
	p.WriteString(`consul\.)`)
	return p.String()
}

// throughPattern takes all parts up to the one of the tag last.
func throughPattern(last string) string {
	var p strings.Builder
	p.WriteString(`((`)
	for _, part := range target {
		if part.tag == last {
			p.WriteString(part.before + segment + `)` + part.behind)
			continue
		}
		p.WriteString(part.before + segment + part.behind)
	}
	p.WriteString(`consul\.)`)
	return p.String()
}
