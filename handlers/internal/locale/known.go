package locale

import (
	"github.com/gohugoio/locales"
	"github.com/gohugoio/locales/af"
	"github.com/gohugoio/locales/am"
	"github.com/gohugoio/locales/ar"
	"github.com/gohugoio/locales/az"
	"github.com/gohugoio/locales/be"
	"github.com/gohugoio/locales/bg"
	"github.com/gohugoio/locales/bn"
	"github.com/gohugoio/locales/bs"
	"github.com/gohugoio/locales/ca"
	"github.com/gohugoio/locales/cs"
	"github.com/gohugoio/locales/cy"
	"github.com/gohugoio/locales/da"
	"github.com/gohugoio/locales/de"
	"github.com/gohugoio/locales/de_AT"
	"github.com/gohugoio/locales/el"
	"github.com/gohugoio/locales/en"
	"github.com/gohugoio/locales/en_001"
	"github.com/gohugoio/locales/en_AU"
	"github.com/gohugoio/locales/en_CA"
	"github.com/gohugoio/locales/en_GB"
	"github.com/gohugoio/locales/en_IE"
	"github.com/gohugoio/locales/en_IN"
	"github.com/gohugoio/locales/en_NZ"
	"github.com/gohugoio/locales/en_ZA"
	"github.com/gohugoio/locales/es"
	"github.com/gohugoio/locales/es_419"
	"github.com/gohugoio/locales/es_MX"
	"github.com/gohugoio/locales/et"
	"github.com/gohugoio/locales/eu"
	"github.com/gohugoio/locales/fa"
	"github.com/gohugoio/locales/fi"
	"github.com/gohugoio/locales/fil"
	"github.com/gohugoio/locales/fr"
	"github.com/gohugoio/locales/fr_BE"
	"github.com/gohugoio/locales/fr_CA"
	"github.com/gohugoio/locales/fr_CH"
	"github.com/gohugoio/locales/ga"
	"github.com/gohugoio/locales/gl"
	"github.com/gohugoio/locales/gu"
	"github.com/gohugoio/locales/he"
	"github.com/gohugoio/locales/hi"
	"github.com/gohugoio/locales/hr"
	"github.com/gohugoio/locales/hu"
	"github.com/gohugoio/locales/hy"
	"github.com/gohugoio/locales/id"
	"github.com/gohugoio/locales/is"
	"github.com/gohugoio/locales/it"
	"github.com/gohugoio/locales/it_CH"
	"github.com/gohugoio/locales/ja"
	"github.com/gohugoio/locales/ka"
	"github.com/gohugoio/locales/kk"
	"github.com/gohugoio/locales/kn"
	"github.com/gohugoio/locales/ko"
	"github.com/gohugoio/locales/lb"
	"github.com/gohugoio/locales/lt"
	"github.com/gohugoio/locales/lv"
	"github.com/gohugoio/locales/mk"
	"github.com/gohugoio/locales/ml"
	"github.com/gohugoio/locales/mn"
	"github.com/gohugoio/locales/mr"
	"github.com/gohugoio/locales/ms"
	"github.com/gohugoio/locales/mt"
	"github.com/gohugoio/locales/nb"
	"github.com/gohugoio/locales/ne"
	"github.com/gohugoio/locales/nl"
	"github.com/gohugoio/locales/nl_BE"
	"github.com/gohugoio/locales/nn"
	"github.com/gohugoio/locales/no"
	"github.com/gohugoio/locales/pa"
	"github.com/gohugoio/locales/pl"
	"github.com/gohugoio/locales/pt"
	"github.com/gohugoio/locales/pt_PT"
	"github.com/gohugoio/locales/ro"
	"github.com/gohugoio/locales/ru"
	"github.com/gohugoio/locales/si"
	"github.com/gohugoio/locales/sk"
	"github.com/gohugoio/locales/sl"
	"github.com/gohugoio/locales/sq"
	"github.com/gohugoio/locales/sr"
	"github.com/gohugoio/locales/sr_Latn"
	"github.com/gohugoio/locales/sv"
	"github.com/gohugoio/locales/sw"
	"github.com/gohugoio/locales/ta"
	"github.com/gohugoio/locales/te"
	"github.com/gohugoio/locales/th"
	"github.com/gohugoio/locales/tr"
	"github.com/gohugoio/locales/uk"
	"github.com/gohugoio/locales/uz"
	"github.com/gohugoio/locales/vi"
	"github.com/gohugoio/locales/zh"
	"github.com/gohugoio/locales/zh_Hant"
	"github.com/gohugoio/locales/zh_Hant_HK"
	"github.com/gohugoio/locales/zu"
)

// known are the languages whose dates can be written. All functions of a language that this package calls are tested for
// each day of a year: the abbreviated names, for example, are incomplete in some languages.
func known() map[string]func() locales.Translator {
	return map[string]func() locales.Translator{
		"af": af.New,
		"am": am.New,
		"ar": ar.New,
		"az": az.New,

		"be": be.New,
		"bg": bg.New,
		"bn": bn.New,
		"bs": bs.New,

		"ca": ca.New,
		"cs": cs.New,
		"cy": cy.New,

		"da":    da.New,
		"de":    de.New,
		"de-AT": de_AT.New,

		"el":     el.New,
		"en":     en.New,
		"en-001": en_001.New,
		"en-AU":  en_AU.New,
		"en-CA":  en_CA.New,
		"en-GB":  en_GB.New,
		"en-IE":  en_IE.New,
		"en-IN":  en_IN.New,
		"en-NZ":  en_NZ.New,
		"en-ZA":  en_ZA.New,
		"es":     es.New,
		"es-419": es_419.New,
		"es-MX":  es_MX.New,
		"et":     et.New,
		"eu":     eu.New,

		"fa":    fa.New,
		"fi":    fi.New,
		"fil":   fil.New,
		"fr":    fr.New,
		"fr-BE": fr_BE.New,
		"fr-CA": fr_CA.New,
		"fr-CH": fr_CH.New,

		"ga": ga.New,
		"gl": gl.New,
		"gu": gu.New,

		"he": he.New,
		"hi": hi.New,
		"hr": hr.New,
		"hu": hu.New,
		"hy": hy.New,

		"id":    id.New,
		"is":    is.New,
		"it":    it.New,
		"it-CH": it_CH.New,

		"ja": ja.New,

		"ka": ka.New,
		"kk": kk.New,
		"kn": kn.New,
		"ko": ko.New,

		"lb": lb.New,
		"lt": lt.New,
		"lv": lv.New,

		"mk": mk.New,
		"ml": ml.New,
		"mn": mn.New,
		"mr": mr.New,
		"ms": ms.New,
		"mt": mt.New,

		"nb":    nb.New,
		"ne":    ne.New,
		"nl":    nl.New,
		"nl-BE": nl_BE.New,
		"nn":    nn.New,
		"no":    no.New,

		"pa":    pa.New,
		"pl":    pl.New,
		"pt":    pt.New,
		"pt-PT": pt_PT.New,

		"ro": ro.New,
		"ru": ru.New,

		"si":      si.New,
		"sk":      sk.New,
		"sl":      sl.New,
		"sq":      sq.New,
		"sr":      sr.New,
		"sr-Latn": sr_Latn.New,
		"sv":      sv.New,
		"sw":      sw.New,

		"ta": ta.New,
		"te": te.New,
		"th": th.New,
		"tr": tr.New,

		"uk": uk.New,
		"uz": uz.New,

		"vi": vi.New,

		"zh":         zh.New,
		"zh-Hant":    zh_Hant.New,
		"zh-Hant-HK": zh_Hant_HK.New,
		"zu":         zu.New,
	}
}
