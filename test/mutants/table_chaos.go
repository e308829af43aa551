package main

import "slices"

const chaosPkg = "./test/suite/chaos"

// onlyInChaos are planted bugs that only clusters of real agents show.
var onlyInChaos = []mutant{
	{
		name: "released-at-the-leases-end", promise: "a node's claims stand until its fence has surely acted",
		in: "cluster/claim", decl: "ReleaseAfter",
		old: "return l.StopAfter + l.Margin }",
		new: "return l.StopAfter }",
	},
}

// alsoInChaos names mutants of other packages that the chaos suite has to catch as well: it checks the promises
// together, in clusters of real agents.
var alsoInChaos = []string{"fence-without-kill", "claimed-while-deleted"}

// inChaos are the mutants of the chaos suite.
func inChaos() []mutant {
	all := slices.Clone(onlyInChaos)
	for _, m := range slices.Concat(fences, ledger) {
		if slices.Contains(alsoInChaos, m.name) {
			m.name += "-in-chaos"
			all = append(all, m)
		}
	}
	for n := range all {
		all[n].pkg, all[n].run, all[n].seeds = chaosPkg, "^TestChaos$", 5
		all[n].args = []string{"-duration=40s"}
	}
	return all
}
