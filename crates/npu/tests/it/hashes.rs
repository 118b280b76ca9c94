//! Hashes of the streams that AMD published for XDNA1 in `amd/RyzenAI-SW` at 2a3c4afe: of the file,
//! and of the stream in canonical form.

/// A published stream.
pub(crate) struct Published {
    /// Its file's name, without `.bin`.
    pub(crate) name: &'static str,
    /// The SHA-256 of the file.
    pub(crate) file: &'static str,
    /// The SHA-256 of its canonical form.
    pub(crate) canonical: &'static str,
}

/// All 52.
pub(crate) const PUBLISHED: [Published; 52] = [
    Published {
        name: "a16fw4acc32f_1_11008_4096_128",
        file: "166008e25e4173090c3300386533cbbee61066722af64ce032a07f183105c1b6",
        canonical: "6870f0e32de1aad841d654dd4e3829eb2ca33a54d13f264d1436a19f3f2cf01d",
    },
    Published {
        name: "a16fw4acc32f_1_11008_4096_32",
        file: "0e24d4dc631c0a60796eee188102b60ab3d458394d66d1f4f0adb724b36f8a65",
        canonical: "f7d5c3e64e85435855009ac3ad3d1ac1ab749354c41fdfa7e6fc9f788d223eab",
    },
    Published {
        name: "a16fw4acc32f_1_4096_12288_128",
        file: "ce4243f089120bfdf2caa7b9e6baca936cf4fba3498c1209c67af14641133885",
        canonical: "855adf2849c3085a8164455c082046bc198681d4cdcd2c22b4dfb3bbe111f85c",
    },
    Published {
        name: "a16fw4acc32f_1_4096_12288_32",
        file: "27c77b60141c8dce2465650e741b19870c190f12f2a31c51e8ef52fcc9ad6838",
        canonical: "c7b160e3e9790c2e0e409eb8aafb04eb6f84f35b34f0279dc83d6567c6cda7f1",
    },
    Published {
        name: "a16fw4acc32f_1_4096_32768_128",
        file: "a532fe8e552aefe4adb1139a3969072a7cc1d2a035846984c7775ae07c705097",
        canonical: "1429f29c7355a1d73af8847e6b45a7e17a2698d49410e4fb020d45297b27288b",
    },
    Published {
        name: "a16fw4acc32f_1_4096_32768_32",
        file: "e6c65845a7d24255522144bdc1555589f744827a6f92ee872ddaafd1dd9a5465",
        canonical: "6f21d9c272d04fdd6c7a1c78f0f0c66572eb9b2db6f593de263fdfa9fe0a415b",
    },
    Published {
        name: "a16fw4acc32f_1_4096_4096_128",
        file: "161a2801194f38459a378a1949d12af4bc98ceb18792f384db0ceedb2ba2de5c",
        canonical: "7f3037c7a90ebd42a10997d680557788cb8d01db2b45f0421572274946f13f1e",
    },
    Published {
        name: "a16fw4acc32f_1_4096_4096_32",
        file: "8e317f5a9215e4bfb589cab529e5c867d50d2cf62e313919eb42aabfe06f764f",
        canonical: "c3debeb346e70678999d2adfb1542b3b4f75d0823a7410dfa2d00d502df97413",
    },
    Published {
        name: "a16fw4acc32f_32_11008_4096_128",
        file: "b42310aafb9fff1b0bfd3de26d91b626af9a2a6e8df8411a21a76ea585f6a805",
        canonical: "9b3a3dc0ae19937ccb4a7459df29405a3b3036e0796f616ab3ae490df543ee56",
    },
    Published {
        name: "a16fw4acc32f_32_11008_4096_32",
        file: "6720f7b584fd398c850a2f8ec9dc807bda493f6c6da13041245239bf45d78b0e",
        canonical: "cea665e69b78dbd99ae9544636888af6629f1d85c76881d072d5f667f1b386ae",
    },
    Published {
        name: "a16fw4acc32f_32_4096_12288_128",
        file: "15e49c3a1d32f417ec1757149336ae1aa09990925e1c298f20741730652f32b6",
        canonical: "3dc2f101c542cd338f0a1360e9bc81aeecafda7a1ac9ddaea8ab8487390b438d",
    },
    Published {
        name: "a16fw4acc32f_32_4096_12288_32",
        file: "0fffeb928d209496c004b480cf0e294645131eb6d3f858e1be7a18fb4952f06d",
        canonical: "aeff97ec2ccbfed0376ecdb0370372e6e99485979639c5e1ecaab0a9dd99a257",
    },
    Published {
        name: "a16fw4acc32f_32_4096_32768_128",
        file: "f71551c8fc0c5f0d4e6f97de0750ffa5fa0252ce9527dbee7fcd0acdd82fe9b6",
        canonical: "71b048364523c432c82deb5080f09492b9f5a3fac33b1735946d14be7df64838",
    },
    Published {
        name: "a16fw4acc32f_32_4096_32768_32",
        file: "f926ac272cf6d2e6c2a422b21d77f568108e33ed67de2c14a4cf17873fc61c40",
        canonical: "2faa7e48708fdc77aecd7b0987f2fed068dcd12b99f7423da8bce69d85efbde2",
    },
    Published {
        name: "a16fw4acc32f_32_4096_4096_128",
        file: "67f866eaa58566f89440911a44e6d9c3e009caefdb96b2e1f95e7456f1bf746d",
        canonical: "df96a9a86287153bf1392030583d877aa54fd2007215834146fa099333d27602",
    },
    Published {
        name: "a16fw4acc32f_32_4096_4096_32",
        file: "9a5d6077e9e436a4ab3a1d7fc0739c9cbe01806a195b8dc77eb504ec65d26bf5",
        canonical: "dfba942d90b07699f53e0a54991e4295f69e986658f2b9f8e7cd67ef59ddf111",
    },
    Published {
        name: "a16fw4acc32f_8_11008_4096_128",
        file: "e90b97d74c5eddb044e7e66abe64d4a32cc27d6d94a55ba51537dea9dad6dc0d",
        canonical: "45f5edfdbdf2860bd758b9e479922a51aea5c32f7f1b6933b3fc822388eff004",
    },
    Published {
        name: "a16fw4acc32f_8_11008_4096_32",
        file: "c5f7277ee48096a025b66337fbcc808b008c0416f18cac5f336826dabcb77692",
        canonical: "a8117759daccd23d2fe9bdfc43fd07fea172122e98185c851c62f579048a82b4",
    },
    Published {
        name: "a16fw4acc32f_8_4096_12288_128",
        file: "9e870d0dc91e02457ef63407f64d655dce865e28fcffbfefcc9a2d9633ae1103",
        canonical: "84050068377223bb1c1886c2c0e3460539b980ff117066e59c526247604252a9",
    },
    Published {
        name: "a16fw4acc32f_8_4096_12288_32",
        file: "8a61b202a16f43c0ef7cdd3f3890eb455ec045a3f0635ba95ff1b9ca0172b4a8",
        canonical: "8aafcc43902ec33c62c4c7171a88aff5a599f355c0fcba31f27a07339a0982ce",
    },
    Published {
        name: "a16fw4acc32f_8_4096_32768_128",
        file: "3fd3c17546d1f3d6542642d0d0f65b090a3a00e87f7bf9346b8353c76a9329ea",
        canonical: "3e777ea4fac41e4648b40925869a7ce288a498b923a492acab591d220ad91aa4",
    },
    Published {
        name: "a16fw4acc32f_8_4096_32768_32",
        file: "3851f8ae2730d872e92297a6b30bdd6d5795df6451a7f80265983ca3c6511f86",
        canonical: "35f704992ec8757a8efc2743a896d6835b2d2790ffe4195da2d08f696321b63e",
    },
    Published {
        name: "a16fw4acc32f_8_4096_4096_128",
        file: "1981213699e672cb2b67f0f48e70978d0933d956481c95c891265730d2c548ad",
        canonical: "00091bbb5deb4efb47de35391bcb0baa71ae972cb49c2d65b0a2c483cc2d6852",
    },
    Published {
        name: "a16fw4acc32f_8_4096_4096_32",
        file: "d5ed27144579542ddaf22c9102c11b4abe155703d94977a888a14c4445a6fdd8",
        canonical: "df30b709b27b15ed1fc614f20df5819023672e474ff3a4988acdf46a683e4409",
    },
    Published {
        name: "a8w8acc32_16_2048_2048",
        file: "decdae737a69167bcaae272183b1bce9a730f11e0131d14378633bd481cdc499",
        canonical: "bc53141f4a94b4d73a6a97c57b33d310f882b5fa2518b02401836f09c5d719a1",
    },
    Published {
        name: "a8w8acc32_16_2048_8192",
        file: "4d4b56039dcd2f499631c0717d9b9e0901e0a1f5184f453d2248a5ccb41b7046",
        canonical: "19c31b71dc6e56f921bd69425ea11134ba57d76d76e27df5926a88e0f00eef06",
    },
    Published {
        name: "a8w8acc32_16_8192_2048",
        file: "415f7825490e805f6776f5ff56652c63e569568b230014238994fd4ad396d9d1",
        canonical: "64e7faef84d8af4e5d638b0685a31dba831746b3555eed92fa311bca10bf1d7c",
    },
    Published {
        name: "a8w8acc32_1_2048_2048",
        file: "1c05b60c234aa98bde9ef8ff44eec7d288107b2b6634416c1c29bc81469c51c4",
        canonical: "8bc2e3636fd50651d07972bab2a8bfc0cd9f34e0033d29411894ac0ccea498b1",
    },
    Published {
        name: "a8w8acc32_1_2048_8192",
        file: "e61a5b946788565657639a10cedf2e21cb2e9fe55cbd4c222f63d672d096eff4",
        canonical: "75527643d6402a3ccf16fea59a02b5f5abcd03a315f93b2c1db5fcd2db750a98",
    },
    Published {
        name: "a8w8acc32_1_8192_2048",
        file: "08d6952bfcc18b8e622437bae766e320bc2d455f97c8351a8ff6d15a9e599cc1",
        canonical: "8dd57916741dd73fb758ef89ef1188547abba4ecf653bfd8da12e758cecc4c38",
    },
    Published {
        name: "a8w8acc32_32_2048_2048",
        file: "3bac2a0bcf5821b1113fa8aa75d397a565813bf8c20d168efe0c7278fb30fa88",
        canonical: "5cd58a8cb9325ad5d3e5dc572ab57079823c7a0cad13e34266eaae503dbdb5f9",
    },
    Published {
        name: "a8w8acc32_32_2048_8192",
        file: "1c11289195d546838dad8349e8e78d6970ddb81a489cacd0243a0f5b8aa4ffe8",
        canonical: "f60627807e3f1504fae506ad330d2b882ddd5c9a75cbb672b8aef08b67cd4844",
    },
    Published {
        name: "a8w8acc32_32_8192_2048",
        file: "3c673d9317259f2d01359274c4b8b365a0c46b876b44d9dc14bdf9fe76a323c7",
        canonical: "6c27435c4ef28e22446e56eefe3c68a5b9f45e4b40f50a2dd14e867465cc541b",
    },
    Published {
        name: "a8w8acc32_64_2048_2048",
        file: "71fcdeb3eb5020111f3a2ea98c4aa1d50bc1aa401f7363a4534c0e13f93e1d8f",
        canonical: "64990bc007ea299a3c9e1ee37049d9e885742bdc0bdd0134554cd43aad14a420",
    },
    Published {
        name: "a8w8acc32_64_2048_8192",
        file: "19bb2e61937bab387d8972e341e2863adcf5d0e479c22a8744dabe34ebb46132",
        canonical: "6ee4aa2bf83f24cae93cfd013bfc3fc29f4b75b9459c72e61434e94c7e702cf1",
    },
    Published {
        name: "a8w8acc32_64_8192_2048",
        file: "758a06fc91da15fa682da993e2cab82694a51de650a7c2ff4c72cb27d8ef000e",
        canonical: "f96884f0767416e1ecc5cb9a7b93b64bd460b1d1db6f802d1a0bfaec8ea14a04",
    },
    Published {
        name: "a8w8acc32_8_2048_2048",
        file: "9091163ed990c0c399b9c41468c157c49cbc97180dfe7082e736ef697e72d4cd",
        canonical: "e2accf636c6f15218d0378c71707adb21b6dc9eef516eba5888778f2cc397f5e",
    },
    Published {
        name: "a8w8acc32_8_2048_8192",
        file: "61d8c2bef496073f71fd55d836abd9b0c82472fdd0ac125627a7418da9014d6c",
        canonical: "5c7a88a035e417d2d9f2f9c1df923309b44866eedd4f0dd45043edbd8096faa5",
    },
    Published {
        name: "a8w8acc32_8_8192_2048",
        file: "43984d0110726be4c7ff4ef03ec014acdbc711bd888d5c6513cd3b0f3aba843e",
        canonical: "d57032b4ebec72e8791ebe06968cbce2415052ab492f2841ca342df3a66d94b0",
    },
    Published {
        name: "bfloat16_256x2048_2048x2048_txn",
        file: "744d03d859a76f3ab9b81177bde890bf7f064e65f3cbb2c9656854f844dc45cc",
        canonical: "7413eef53c4e0cc2826fda5eae1ec7cc4cf8202e6dbaefa0e4c9ec472c4f2c8c",
    },
    Published {
        name: "mladf_a8w8acc32_16_2048_2048",
        file: "c417d27fb665cb4d7a7c4d4758b0c65840457cb222105f2c04438c5c6a1c1fa9",
        canonical: "0a78ba0ad4a3160b37e32fc9f2789446c21fdeca8602875518a33f2e8afc7d75",
    },
    Published {
        name: "mladf_a8w8acc32_16_2048_51200",
        file: "f76c8834a63fca826e6d50c56e03ed5367d14c786399ef4df054ab5f3e5a97cf",
        canonical: "d3e699d7e1f4f52be279e264575f6534cc545fb2d358b1c243aa2cce46cb8d5e",
    },
    Published {
        name: "mladf_a8w8acc32_16_2048_8192",
        file: "f32f6e117ebcef306fe5d6a20a84085ec7b937d387484abf35fa05371eb1939b",
        canonical: "874a3d9020d19967013ea9c132ac97e1ed6f04cc7508ed2ce495f63391b198af",
    },
    Published {
        name: "mladf_a8w8acc32_16_8192_2048",
        file: "e5afcfad2d5d516c00ab7915a8a0e4e5780fbb6494b379fbecdccb0c5f048f7c",
        canonical: "911f0b2c20ac38b83cd8b9568cdd4e2504c73397f74b6a8009bc44ec6cb3ba5b",
    },
    Published {
        name: "mladf_a8w8acc32_32_2048_2048",
        file: "698b8402ae318bb443f62fe2a5d18c1b4ff41e814ec9d72080771fd44e92f800",
        canonical: "85efcc1f721103e4d66daf9fc6880143ea74b21ab4f8618e013d39069042510f",
    },
    Published {
        name: "mladf_a8w8acc32_32_2048_51200",
        file: "2b6a974dd1ff9fb8233373d6ae7899372e376ee08cb535009b489f2dbb32a04a",
        canonical: "9c58a056ee37b31e105bd77b627523cc366a14db1a1e57aa7ed4bb483b3f3761",
    },
    Published {
        name: "mladf_a8w8acc32_32_2048_8192",
        file: "2b3ba204e814dc4f442f7c3901264992d9eb252727cf7391664a4ae61bf61af8",
        canonical: "e75ca0402dc2671a562abd3073bc26184c5f656e3c5240e31bd970a260ac2dd8",
    },
    Published {
        name: "mladf_a8w8acc32_32_8192_2048",
        file: "3eb27d0d9d8acb944912871dbd9f510c96736625310e1f2f8ded86dd656036bb",
        canonical: "27951c212f7d441ef816c42595209c44f7e4006602c08c8d755e58d462429d0f",
    },
    Published {
        name: "mladf_a8w8acc32_8_2048_2048",
        file: "2bd8fbbf604c54a3cfa53bf898ccb7fe1f54f552e94f79b9268203386dd3a3d2",
        canonical: "00709b5a47269c19aa052e675e1a923442b9005efa7d04db9ef551c4bf8b60bc",
    },
    Published {
        name: "mladf_a8w8acc32_8_2048_51200",
        file: "2bd8fbbf604c54a3cfa53bf898ccb7fe1f54f552e94f79b9268203386dd3a3d2",
        canonical: "00709b5a47269c19aa052e675e1a923442b9005efa7d04db9ef551c4bf8b60bc",
    },
    Published {
        name: "mladf_a8w8acc32_8_2048_8192",
        file: "eaa76789505b85aab7b0989fe4f9a21d45f7f9f24853d65458f86eea092d458e",
        canonical: "e56de206ba74e0f5018397eb5a7c25ad1a3ea33039752c122675697c5bce46c2",
    },
    Published {
        name: "mladf_a8w8acc32_8_8192_2048",
        file: "5204114ad1701115abc384aa362068db7fd03ac4212217c9a905a6036cb8670d",
        canonical: "f55e0269b11eeabd0eef72cd9e5a7694fe3f5b8350a4e638888c215f2efda33e",
    },
];
