//! What a Gemma is, as data: config, Plan, fusion, scratch memory, cost
